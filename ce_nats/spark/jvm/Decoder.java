package io.cenats.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.NullType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * Decodes a message to a row; mirrors {@code from_nats_message(message, parse_data=False)} of {@code
 * ce_nats/codec/binding.py}.
 *
 * <p>Arguments are the headers, the payload, and optionally a NULL whose type is a struct, with a field for each
 * extension attribute that has a declared type. Spark's generated code calls the {@code invoke} for the type of the
 * headers.
 */
public final class Decoder implements ScalarFunction<InternalRow> {
    private static final long serialVersionUID = 1;

    private static final byte[] NOTHING = {};
    private static final DataType PAIRS = DataTypes.createArrayType(DataTypes.createStructType(new StructField[] {
        DataTypes.createStructField("key", DataTypes.StringType, true),
        DataTypes.createStructField("value", DataTypes.StringType, true)
    }));
    private static final int HEADERS = 0;
    private static final int DATA = 1;
    private static final int TYPES = 2;

    private final OutputKind output;
    private final StructType arguments;
    private final HeaderColumnType headersType;
    private final ExtensionTypes types;

    private transient Last last;

    /**
     * The last message, and its row. If a query uses the result in a condition and in its output, Spark calls {@code
     * invoke} again with the same two objects. It may modify an object that it reuses, but creates an array or a map of
     * headers, and a payload, for each message.
     */
    private record Last(Thread thread, Object headers, byte[] data, InternalRow row) {
        boolean is(Object headers, byte[] data) {
            return this.headers == headers && this.data == data && thread == Thread.currentThread();
        }
    }

    /**
     * @param output kind of the result
     * @param given types of the arguments
     * @throws UnsupportedOperationException the types are not valid
     */
    Decoder(OutputKind output, StructType given) {
        this.output = output;
        this.arguments = checked(given);
        this.headersType = HeaderColumnType.of(arguments.fields()[HEADERS].dataType());
        this.types = ExtensionTypes.of(declared());
    }

    private static StructType checked(StructType given) {
        StructField[] fields = given.fields().clone();
        if (fields.length < TYPES || fields.length > TYPES + 1) {
            throw new UnsupportedOperationException(
                    "arguments must be headers and data, got " + fields.length + " arguments");
        }
        if (fields[HEADERS].dataType() instanceof NullType) {
            fields[HEADERS] = DataTypes.createStructField("headers", PAIRS, true);
        }
        DataType data = fields[DATA].dataType();
        if (!(data instanceof BinaryType || data instanceof StringType || data instanceof NullType)) {
            throw new UnsupportedOperationException("data must be BINARY or STRING, got " + data.simpleString());
        }
        fields[DATA] = DataTypes.createStructField("data", DataTypes.BinaryType, true);
        if (fields.length > TYPES && !(fields[TYPES].dataType() instanceof StructType)) {
            throw new UnsupportedOperationException(
                    "the types of extensions must be a struct, got " + fields[TYPES].dataType().simpleString());
        }
        return DataTypes.createStructType(fields);
    }

    /** Return the extensions with a declared type, as the fields of a struct. */
    private StructType declared() {
        StructField[] fields = arguments.fields();
        return fields.length > TYPES ? (StructType) fields[TYPES].dataType() : new StructType();
    }

    // --- Called by generated code ------------------------------------------------------------------------------------

    /** Decode headers that are an array of structs. */
    public InternalRow invoke(ArrayData headers, byte[] data) {
        return row(headers, data);
    }

    /** Decode headers that are a map. */
    public InternalRow invoke(MapData headers, byte[] data) {
        return row(headers, data);
    }

    /** Decode headers that are a raw block. */
    public InternalRow invoke(byte[] headers, byte[] data) {
        return row(headers, data);
    }

    /** As without the types of extensions, which are read when the function is bound. */
    public InternalRow invoke(ArrayData headers, byte[] data, InternalRow types) {
        return invoke(headers, data);
    }

    /** As without the types of extensions. */
    public InternalRow invoke(MapData headers, byte[] data, InternalRow types) {
        return invoke(headers, data);
    }

    /** As without the types of extensions. */
    public InternalRow invoke(byte[] headers, byte[] data, InternalRow types) {
        return invoke(headers, data);
    }

    private InternalRow row(Object headers, byte[] data) {
        Last known = last;
        if (known != null && known.is(headers, data)) {
            return known.row;
        }
        InternalRow row;
        try {
            row = output.row(decode(read(headers), data == null ? NOTHING : data));
        } catch (DecodeError error) {
            row = output.row(error.code, types);
        }
        if (headers != null && data != null) {
            last = new Last(Thread.currentThread(), headers, data, row);
        }
        return row;
    }

    private Headers read(Object headers) throws DecodeError {
        if (headers instanceof ArrayData pairs) {
            return Headers.ofPairs(pairs, headersType.isNameBinary(), headersType.isValueBinary());
        }
        if (headers instanceof MapData map) {
            return headersType.hasLists() ? Headers.ofLists(map) : Headers.ofMap(map);
        }
        return headers == null ? Headers.NONE : HeaderBlock.decode((byte[]) headers);
    }

    private Event decode(Headers headers, byte[] payload) throws DecodeError {
        Mode mode = Mode.detect(headers, payload.length > 0);
        boolean isDelivered = payload.length > 0 || !headers.hasUndeliveredPayload();
        if (mode.mode() == ContentMode.BINARY) {
            Event event = Binary.decode(headers, payload, types);
            event.dataError = isDelivered ? null : ErrorCode.DATA_NOT_DELIVERED;
            return event;
        }
        DecodeError.require(isDelivered, ErrorCode.NOT_A_CLOUDEVENT);
        return Structured.decode(payload, mode.isMarked(), types);
    }

    // --- Called by the planner ---------------------------------------------------------------------------------------

    @Override
    public String name() {
        return output.toString();
    }

    @Override
    public DataType resultType() {
        return output.schema(declared());
    }

    @Override
    public DataType[] inputTypes() {
        StructField[] fields = arguments.fields();
        DataType[] types = new DataType[fields.length];
        for (int index = 0; index < fields.length; index++) {
            types[index] = fields[index].dataType();
        }
        return types;
    }

    @Override
    public boolean isResultNullable() {
        return false;
    }

    @Override
    public String canonicalName() {
        return "ce_nats." + name() + arguments.simpleString();
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Decoder decoder && canonicalName().equals(decoder.canonicalName());
    }

    @Override
    public int hashCode() {
        return canonicalName().hashCode();
    }

    @Override
    public String toString() {
        return "ce_nats." + name();
    }
}
