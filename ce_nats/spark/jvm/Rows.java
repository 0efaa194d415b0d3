package io.cenats.spark;

import java.util.Arrays;
import java.util.Map;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Events as rows, with their schemas; mirrors {@code ce_nats/spark/columns/_schema.py}. */
final class Rows {
    private static final DataType TEXTS = DataTypes.createMapType(DataTypes.StringType, DataTypes.StringType, true);

    /** The struct that {@code from_nats} returns. */
    static final StructType EVENT = struct(
            field("attributes", struct(concat(attributes(), field("time_text", DataTypes.StringType)))),
            field("extensions", TEXTS),
            field("data", DataTypes.BinaryType),
            field("is_json", DataTypes.BooleanType),
            field("mode", DataTypes.StringType),
            field("error", DataTypes.StringType));

    private static final StructField[] FLAT = concat(
            attributes(),
            field("extensions", TEXTS),
            field("data", DataTypes.BinaryType),
            field("mode", DataTypes.StringType),
            field("error", DataTypes.StringType));

    private static final int CORE = Attributes.CORE.length;

    private Rows() {}

    /** Return a struct with the columns of {@code explode_cloudevents}; those of declared extensions are last. */
    static StructType flat(StructType declared) {
        return struct(concat(FLAT, declared.fields()));
    }

    /** Return a row of {@link #EVENT}. */
    static InternalRow ofEvent(Event event) {
        Object[] attributes = new Object[CORE + 1];
        setAttributes(attributes, event);
        attributes[CORE] = string(event.core[Attributes.TIME]);
        return row(
                row(attributes),
                map(event.extensions),
                event.data,
                event.isJson,
                string(event.mode),
                null);
    }

    /** Return a row of {@link #EVENT} for a message that is not an event. */
    static InternalRow ofError(ErrorCode code) {
        Object[] values = new Object[EVENT.fields().length];
        values[values.length - 1] = string(code);
        return row(values);
    }

    /** Return a row of {@link #flat}. */
    static InternalRow flatOfEvent(Event event) {
        Object[] values = new Object[FLAT.length + event.typed.length];
        setAttributes(values, event);
        values[CORE] = map(event.extensions);
        values[CORE + 1] = event.data;
        values[CORE + 2] = string(event.mode);
        System.arraycopy(event.typed, 0, values, FLAT.length, event.typed.length);
        return row(values);
    }

    /** Return a row of {@link #flat} for a message that is not an event. */
    static InternalRow flatOfError(ErrorCode code, int declared) {
        Object[] values = new Object[FLAT.length + declared];
        values[FLAT.length - 1] = string(code);
        return row(values);
    }

    /** Return a STRING from valid UTF-8; null for null. */
    static UTF8String string(byte[] text) {
        return UTF8String.fromBytes(text);
    }

    private static UTF8String string(Enum<?> constant) {
        return UTF8String.fromString(constant.toString());
    }

    private static void setAttributes(Object[] values, Event event) {
        for (int index = 0; index < CORE; index++) {
            values[index] = string(event.core[index]);
        }
        values[Attributes.TIME] = event.time == Timestamp.NONE ? null : (Object) event.time;
    }

    private static MapData map(Map<String, byte[]> texts) {
        Object[] keys = new Object[texts.size()];
        Object[] values = new Object[texts.size()];
        int size = 0;
        for (Map.Entry<String, byte[]> entry : texts.entrySet()) {
            keys[size] = UTF8String.fromString(entry.getKey());
            values[size++] = string(entry.getValue());
        }
        return new ArrayBasedMapData(new GenericArrayData(keys), new GenericArrayData(values));
    }

    private static InternalRow row(Object... values) {
        return new GenericInternalRow(values);
    }

    private static StructField[] attributes() {
        StructField[] fields = new StructField[Attributes.CORE.length];
        for (int index = 0; index < fields.length; index++) {
            boolean isTime = index == Attributes.TIME;
            fields[index] = field(Attributes.CORE[index], isTime ? DataTypes.TimestampType : DataTypes.StringType);
        }
        return fields;
    }

    private static StructField[] concat(StructField[] fields, StructField... more) {
        StructField[] all = Arrays.copyOf(fields, fields.length + more.length);
        System.arraycopy(more, 0, all, fields.length, more.length);
        return all;
    }

    private static StructField field(String name, DataType type) {
        return DataTypes.createStructField(name, type, true);
    }

    private static StructType struct(StructField... fields) {
        return DataTypes.createStructType(fields);
    }
}
