package io.cenats.spark;

import java.util.Arrays;

import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The catalog through which Spark finds the functions; {@code spark.sql.catalog.ce_nats} is set to this class. */
public final class Catalog implements FunctionCatalog {
    private String name;

    @Override
    public void initialize(String name, CaseInsensitiveStringMap options) {
        this.name = name;
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public Identifier[] listFunctions(String[] namespace) {
        return Arrays.stream(Form.values())
                .map(form -> Identifier.of(namespace, form.toString()))
                .toArray(Identifier[]::new);
    }

    @Override
    public UnboundFunction loadFunction(Identifier identifier) throws NoSuchFunctionException {
        for (Form form : Form.values()) {
            if (identifier.namespace().length == 0 && identifier.name().equals(form.toString())) {
                return new Unbound(form);
            }
        }
        throw new NoSuchFunctionException(identifier);
    }

    /** A function whose arguments are not known yet. */
    private record Unbound(Form form) implements UnboundFunction {
        private static final long serialVersionUID = 1;

        @Override
        public BoundFunction bind(StructType arguments) {
            return new Decoder(form, arguments);
        }

        @Override
        public String name() {
            return form.toString();
        }

        @Override
        public String description() {
            return form + "(headers, data): the CloudEvent in a NATS message";
        }
    }
}
