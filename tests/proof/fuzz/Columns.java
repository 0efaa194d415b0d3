import io.cenats.spark.Catalog;
import io.cenats.spark.Decoder;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Decodes messages from standard input into columns, without Spark; `java.py` has the other end. */
public final class Columns {
    private static final DataInputStream IN = new DataInputStream(new BufferedInputStream(System.in, 1 << 20));
    private static final DataOutputStream OUT = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 20));

    public static void main(String[] arguments) throws Exception {
        for (int count = IN.readInt(); count > 0; count = IN.readInt()) {
            String kind = text();
            StructType types = StructType.fromDDL("headers " + kind + ", data binary");
            String declared = text();
            if (!declared.isEmpty()) {
                types = types.add("types", StructType.fromDDL(declared));
            }
            Decoder decoder = (Decoder) new Catalog()
                    .loadFunction(Identifier.of(new String[0], "event_columns"))
                    .bind(types);
            StructField[] fields = ((StructType) decoder.resultType()).fields();
            OUT.writeInt(fields.length);
            for (StructField field : fields) {
                write(field.name().getBytes(StandardCharsets.UTF_8));
            }
            for (int row = 0; row < count; row++) {
                write(decode(decoder, types.fields()[0].dataType()), fields);
            }
            OUT.flush();
        }
    }

    private static InternalRow decode(Decoder decoder, DataType kind) throws IOException {
        if (kind instanceof BinaryType) {
            return decoder.invoke(bytes(), bytes());
        }
        boolean isMap = kind instanceof MapType;
        DataType[] parts = isMap
                ? new DataType[] {((MapType) kind).keyType(), ((MapType) kind).valueType()}
                : partsOf((StructType) ((ArrayType) kind).elementType());
        int count = IN.readInt();
        Object[] names = new Object[Math.max(count, 0)];
        Object[] values = new Object[names.length];
        for (int index = 0; index < names.length; index++) {
            names[index] = part(parts[0]);
            values[index] = part(parts[1]);
        }
        byte[] data = bytes();
        if (isMap) {
            MapData map = new ArrayBasedMapData(new GenericArrayData(names), new GenericArrayData(values));
            return decoder.invoke(count < 0 ? null : map, data);
        }
        Object[] pairs = new Object[names.length];
        for (int index = 0; index < pairs.length; index++) {
            pairs[index] = new GenericInternalRow(new Object[] {names[index], values[index]});
        }
        return decoder.invoke(count < 0 ? null : (ArrayData) new GenericArrayData(pairs), data);
    }

    private static DataType[] partsOf(StructType pair) {
        return new DataType[] {pair.fields()[0].dataType(), pair.fields()[1].dataType()};
    }

    private static Object part(DataType type) throws IOException {
        if (type instanceof ArrayType list) {
            int count = IN.readInt();
            Object[] items = new Object[Math.max(count, 0)];
            for (int index = 0; index < items.length; index++) {
                items[index] = part(list.elementType());
            }
            return count < 0 ? null : new GenericArrayData(items);
        }
        byte[] part = bytes();
        return part != null && type instanceof StringType ? UTF8String.fromBytes(part) : part;
    }

    private static String text() throws IOException {
        return new String(bytes(), StandardCharsets.UTF_8);
    }

    private static byte[] bytes() throws IOException {
        int size = IN.readInt();
        return size < 0 ? null : IN.readNBytes(size);
    }

    private static void write(InternalRow row, StructField[] fields) throws IOException {
        for (int index = 0; index < fields.length; index++) {
            write(row.isNullAt(index) ? null : value(row, index, fields[index].dataType()));
        }
    }

    private static byte[] value(InternalRow row, int index, DataType type) {
        if (type instanceof BinaryType) {
            return row.getBinary(index);
        }
        if (type instanceof StringType) {
            return row.getUTF8String(index).getBytes();
        }
        if (type instanceof MapType) {
            StringBuilder text = new StringBuilder();
            MapData map = row.getMap(index);
            for (int entry = 0; entry < map.numElements(); entry++) {
                text.append(map.keyArray().getUTF8String(entry)).append('=');
                text.append(map.valueArray().getUTF8String(entry)).append('\n');
            }
            return text.toString().getBytes(StandardCharsets.UTF_8);
        }
        return String.valueOf(row.get(index, type)).getBytes(StandardCharsets.UTF_8);
    }

    private static void write(byte[] value) throws IOException {
        OUT.writeInt(value == null ? -1 : value.length);
        if (value != null) {
            OUT.write(value);
        }
    }
}
