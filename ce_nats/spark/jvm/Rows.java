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
        return new EventRow(event);
    }

    /** Return a row of {@link #EVENT} for a message that is not an event. */
    static InternalRow ofError(ErrorCode code) {
        Object[] values = new Object[EVENT.fields().length];
        values[values.length - 1] = string(code);
        return row(values);
    }

    /** Return a row of {@link #flat}. */
    static InternalRow flatOfEvent(Event event) {
        return new FlatRow(event);
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

    private static Object attribute(Event event, int index) {
        if (index == Attributes.TIME) {
            return event.time == Timestamp.NONE ? null : (Object) event.time;
        }
        return string(event.core[index]);
    }

    /** A row of {@link #EVENT}. */
    private static final class EventRow extends LazyRow {
        private static final long serialVersionUID = 1;
        private final transient Event event;

        EventRow(Event event) {
            super(new Object[EVENT.fields().length]);
            this.event = event;
        }

        @Override
        Object make(int field) {
            return switch (field) {
                case 0 -> new AttributesRow(event);
                case 1 -> map(event.extensions());
                case 2 -> event.data;
                case 3 -> event.isJson;
                case 4 -> string(event.mode);
                default -> error(event);
            };
        }
    }

    /** A row of the attributes in {@link #EVENT}. */
    private static final class AttributesRow extends LazyRow {
        private static final long serialVersionUID = 1;
        private final transient Event event;

        AttributesRow(Event event) {
            super(new Object[CORE + 1]);
            this.event = event;
        }

        @Override
        Object make(int field) {
            return field < CORE ? attribute(event, field) : string(event.core[Attributes.TIME]);
        }
    }

    /** A row of {@link #flat}. */
    private static final class FlatRow extends LazyRow {
        private static final long serialVersionUID = 1;
        private final transient Event event;

        FlatRow(Event event) {
            super(new Object[FLAT.length + event.typed.length]);
            this.event = event;
        }

        @Override
        Object make(int field) {
            if (field < CORE) {
                return attribute(event, field);
            }
            return switch (field - CORE) {
                case 0 -> map(event.extensions());
                case 1 -> event.data;
                case 2 -> string(event.mode);
                case 3 -> error(event);
                default -> event.typed[field - FLAT.length];
            };
        }
    }

    private static UTF8String error(Event event) {
        return event.dataError == null ? null : string(event.dataError);
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
