import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.cloudevents.CloudEvent;
import io.cloudevents.core.builder.CloudEventBuilder;
import io.cloudevents.sql.EvaluationRuntime;
import io.cloudevents.sql.Expression;
import io.cloudevents.sql.Parser;
import io.cloudevents.sql.Result;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Map;

/** Evaluates expressions of CloudEvents SQL: lines with expression and event in, lines with value and error out. */
public final class Cesql {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            output.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
    }

    private static ObjectNode answer(JsonNode asked) {
        ObjectNode found = JSON.createObjectNode();
        Expression expression;
        try {
            expression = Parser.getDefault().parse(asked.get("expression").asText());
        } catch (RuntimeException error) {
            return found.put("parse", String.valueOf(error));
        }
        try {
            Result result = expression.evaluate(EvaluationRuntime.getDefault(), event(asked.get("event")));
            found.set("value", JSON.valueToTree(result.value()));
            if (result.isFailed()) {
                found.put("error", String.valueOf(result.causes()));
            }
        } catch (RuntimeException error) {
            found.put("panic", String.valueOf(error));
        }
        return found;
    }

    private static CloudEvent event(JsonNode fields) {
        CloudEventBuilder event = CloudEventBuilder.v1();
        for (Iterator<Map.Entry<String, JsonNode>> each = fields.fields(); each.hasNext(); ) {
            Map.Entry<String, JsonNode> field = each.next();
            JsonNode value = field.getValue();
            switch (field.getKey()) {
                case "specversion" -> { }
                case "id" -> event.withId(value.asText());
                case "source" -> event.withSource(URI.create(value.asText()));
                case "type" -> event.withType(value.asText());
                case "subject" -> event.withSubject(value.asText());
                default -> {
                    if (value.isInt()) {
                        event.withExtension(field.getKey(), value.asInt());
                    } else if (value.isBoolean()) {
                        event.withExtension(field.getKey(), value.asBoolean());
                    } else {
                        event.withExtension(field.getKey(), value.asText());
                    }
                }
            }
        }
        return event.build();
    }
}
