import io.cenats.spark.Catalog;
import io.cenats.spark.Decoder;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Prints which calls of the decoder return the row of the call before. */
public final class Repeated {
    private static final byte[] DATA = {'1'};
    private static final byte[] SAME = DATA.clone();

    public static void main(String[] arguments) throws Exception {
        StructType types = StructType.fromDDL("headers array<struct<key string, value string>>, data binary");
        Decoder decoder = (Decoder) new Catalog()
                .loadFunction(Identifier.of(new String[0], "event_columns"))
                .bind(types);
        ArrayData headers = headers("a");
        InternalRow first = decoder.invoke(headers, DATA);
        print("same message", first == decoder.invoke(headers, DATA));
        print("same message, other thread", first == inThread(decoder, headers));
        InternalRow again = decoder.invoke(headers, DATA);
        print("other payload", again == decoder.invoke(headers, SAME));
        print("other headers", again == decoder.invoke(headers("b"), SAME));
        print("the message before", again == decoder.invoke(headers, DATA));
        print("no payload", decoder.invoke(headers, null) == decoder.invoke(headers, null));
        print("no headers", decoder.invoke((ArrayData) null, DATA) == decoder.invoke((ArrayData) null, DATA));
        print("values", again.getUTF8String(1).toString().equals("a"));
        InternalRow changed = decoder.invoke(headers("c"), DATA);
        changed.setNullAt(1);
        print("a field that was set to null", !changed.isNullAt(1));
        print("a field that was not read", changed.copy().getUTF8String(2).toString().equals("/s"));
    }

    private static InternalRow inThread(Decoder decoder, ArrayData headers) throws InterruptedException {
        InternalRow[] row = new InternalRow[1];
        Thread thread = new Thread(() -> row[0] = decoder.invoke(headers, DATA));
        thread.start();
        thread.join();
        return row[0];
    }

    private static ArrayData headers(String id) {
        String[][] pairs = {{"ce-specversion", "1.0"}, {"ce-id", id}, {"ce-source", "/s"}, {"ce-type", "t"}};
        Object[] rows = new Object[pairs.length];
        for (int index = 0; index < rows.length; index++) {
            rows[index] = new GenericInternalRow(
                    new Object[] {UTF8String.fromString(pairs[index][0]), UTF8String.fromString(pairs[index][1])});
        }
        return new GenericArrayData(rows);
    }

    private static void print(String what, boolean isTrue) {
        System.out.println(what + ": " + isTrue);
    }
}
