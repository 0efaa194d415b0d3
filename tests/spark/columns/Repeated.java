import io.cenats.spark.Catalog;
import io.cenats.spark.Decoder;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.stream.Collectors;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** Prints which calls of the decoder return the row of the call before, and what the planner reads. */
public final class Repeated {
    private static final byte[] DATA = {'1'};
    private static final byte[] SAME = DATA.clone();
    private static final String TYPES = "headers array<struct<key string, value string>>, data binary";

    public static void main(String[] arguments) throws Exception {
        Decoder decoder = bound("event_columns", TYPES);
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
        print("the first field", changed.copy().getUTF8String(0).toString().equals("1.0"));
        print("the last field", changed.copy().getUTF8String(10).toString().equals("binary"));
        print("a message without headers after one with", decoder.invoke((ArrayData) null, DATA).isNullAt(1));
        print("a row that is sent to another process", sent(decoder.invoke(headers, DATA)));
        print("headers outside of the heap", decoder.invoke(outsideOfHeap(headers("a")), DATA).getUTF8String(1).toString().equals("a"));
        print("fields", decoder.invoke(headers, DATA).numFields() == 12);
        print("types of extensions", decoder.invoke(headers, DATA, null) == decoder.invoke(headers, DATA));
        for (String function : new String[] {"event_columns", "from_nats"}) {
            byte[] block = "NATS/1.0\r\n\r\n".getBytes(StandardCharsets.US_ASCII);
            Decoder ofBlocks = bound(function, "headers binary, data binary");
            print(function + " of blocks", ofBlocks.invoke(block, DATA, null) == ofBlocks.invoke(block, DATA));
            MapData map = new ArrayBasedMapData(new GenericArrayData(new Object[0]), new GenericArrayData(new Object[0]));
            Decoder ofMaps = bound(function, "headers map<string,string>, data binary");
            print(function + " of maps", ofMaps.invoke(map, DATA, null) == ofMaps.invoke(map, DATA));
        }
        printPlan(decoder);
        printTypes();
        printCatalog();
    }

    private static void printPlan(Decoder decoder) throws Exception {
        print("name", decoder.name().equals("event_columns") && decoder.toString().equals("ce_nats.event_columns"));
        print("nullable", decoder.isResultNullable());
        Decoder same = bound("event_columns", TYPES);
        print("equal", decoder.equals(same) && decoder.hashCode() == same.hashCode() && decoder.hashCode() != 0);
        Decoder ofBlocks = bound("event_columns", "headers binary, data binary");
        print("equal with other types", decoder.equals(ofBlocks) || decoder.hashCode() == ofBlocks.hashCode());
        Decoder other = bound("from_nats", TYPES);
        print("equal with another function", decoder.equals(other) || decoder.canonicalName().equals(other.canonicalName()));
        print("equal with another object", decoder.equals("ce_nats.event_columns"));
        print("namespace in the canonical name", decoder.canonicalName().startsWith("ce_nats.event_columns"));
    }

    private static void printTypes() throws Exception {
        print(inputs(TYPES));
        print(inputs("headers void, data void"));
        print(inputs("headers binary, data string"));
        print(inputs("headers map<string,array<string>>, data binary, types struct<n:int>"));
        for (String types : new String[] {
            "headers binary", "headers int, data binary", "headers binary, data int", "headers binary, data binary, n int",
            TYPES + ", types struct<n:int>, more int", "headers array<struct<a:string>>, data binary",
            "headers binary, data binary, types struct<n:double>"
        }) {
            try {
                print(types, inputs(types).isEmpty());
            } catch (UnsupportedOperationException error) {
                print(error.getMessage());
            }
        }
    }

    private static void printCatalog() throws Exception {
        Catalog catalog = new Catalog();
        catalog.initialize("ce_nats", null);
        print(catalog.name());
        for (Identifier function : catalog.listFunctions(new String[] {"n"})) {
            print(function + " " + catalog.loadFunction(Identifier.of(new String[0], function.name())).name());
            print(catalog.loadFunction(Identifier.of(new String[0], function.name())).description());
        }
        for (Identifier unknown : new Identifier[] {
            Identifier.of(new String[] {"n"}, "from_nats"), Identifier.of(new String[0], "to_nats")
        }) {
            try {
                print(unknown.toString(), catalog.loadFunction(unknown) == null);
            } catch (NoSuchFunctionException error) {
                print(unknown + " is unknown");
            }
        }
    }

    private static Decoder bound(String function, String types) throws Exception {
        return (Decoder) new Catalog()
                .loadFunction(Identifier.of(new String[0], function))
                .bind(StructType.fromDDL(types));
    }

    private static String inputs(String types) throws Exception {
        return Arrays.stream(bound("event_columns", types).inputTypes())
                .map(DataType::simpleString)
                .collect(Collectors.joining(", "));
    }

    private static boolean sent(InternalRow row) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
            out.writeObject(row);
        }
        try (ObjectInputStream in = new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray()))) {
            InternalRow received = (InternalRow) in.readObject();
            return received.getClass() == GenericInternalRow.class && received.getUTF8String(1).toString().equals("a");
        }
    }

    private static InternalRow inThread(Decoder decoder, ArrayData headers) throws InterruptedException {
        InternalRow[] row = new InternalRow[1];
        Thread thread = new Thread(() -> row[0] = decoder.invoke(headers, DATA));
        thread.start();
        thread.join();
        return row[0];
    }

    /** Return the same headers, in memory of which the garbage collector knows nothing: Spark has columns there. */
    private static ArrayData outsideOfHeap(ArrayData headers) {
        Object[] rows = new Object[headers.numElements()];
        for (int index = 0; index < rows.length; index++) {
            InternalRow pair = headers.getStruct(index, 2);
            rows[index] = new GenericInternalRow(new Object[] {moved(pair.getUTF8String(0)), moved(pair.getUTF8String(1))});
        }
        return new GenericArrayData(rows);
    }

    private static UTF8String moved(UTF8String text) {
        byte[] octets = text.getBytes();
        long address = Platform.allocateMemory(octets.length);
        Platform.copyMemory(octets, Platform.BYTE_ARRAY_OFFSET, null, address, octets.length);
        return UTF8String.fromAddress(null, address, octets.length);
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
        print(what + ": " + isTrue);
    }

    private static void print(String line) {
        System.out.println(line);
    }
}
