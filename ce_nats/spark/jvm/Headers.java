package io.cenats.spark;

import static io.cenats.spark.DecodeError.require;

import java.util.Arrays;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;

/**
 * Header names and values in wire order, from any type of headers column; mirrors {@code ce_nats/message.py}. They may
 * be any bytes: headers that are not used are not checked.
 */
final class Headers {
    static final Headers NONE = new Headers(0);

    private static final byte[] UNUSED = {};
    private static final int MAX_DIGITS = 18;

    private Name[] names;
    private byte[][] values;
    private int size;

    Headers(int expected) {
        names = new Name[expected];
        values = new byte[expected][];
    }

    int size() {
        return size;
    }

    Name name(int index) {
        return names[index];
    }

    byte[] value(int index) {
        return values[index];
    }

    /**
     * Return whether a message with an empty payload would have another one, by {@code Nats-Msg-Size}; mirrors {@code
     * undelivered_size} of {@code ce_nats/codec/mode.py}.
     */
    boolean hasUndeliveredPayload() {
        boolean isPositive = false;
        for (int index = 0; index < size; index++) {
            if (names[index].isSize()) {
                byte[] text = Text.strip(values[index]);
                boolean isNumber = text.length > 0 && text.length <= MAX_DIGITS;
                isPositive = false;
                for (byte digit : text) {
                    isNumber &= Text.isDigit(digit);
                    isPositive |= digit != '0';
                }
                isPositive &= isNumber;
            }
        }
        return isPositive;
    }

    /**
     * Append a header.
     *
     * @param value bytes of its value; any bytes if the value is not used
     */
    void add(Name name, byte[] value) {
        if (size == names.length) {
            names = Arrays.copyOf(names, 2 * size + 1);
            values = Arrays.copyOf(values, 2 * size + 1);
        }
        names[size] = name;
        values[size++] = value;
    }

    /** Return headers from an array of structs of two strings or binaries. */
    static Headers ofPairs(ArrayData pairs, boolean isNameBinary, boolean isValueBinary) throws DecodeError {
        int count = pairs.numElements();
        Headers headers = new Headers(count);
        for (int index = 0; index < count; index++) {
            require(!pairs.isNullAt(index), ErrorCode.INVALID_HEADER_NAME);
            InternalRow pair = pairs.getStruct(index, 2);
            require(!pair.isNullAt(0), ErrorCode.INVALID_HEADER_NAME);
            Name name = isNameBinary ? Name.of(pair.getBinary(0)) : Name.of(pair.getUTF8String(0));
            require(!pair.isNullAt(1), ErrorCode.INVALID_HEADER_VALUE);
            headers.add(name, name.isUsed() ? value(pair, isValueBinary) : UNUSED);
        }
        return headers;
    }

    private static byte[] value(InternalRow pair, boolean isBinary) {
        return isBinary ? pair.getBinary(1) : Text.copy(pair.getUTF8String(1));
    }

    /** Return headers from a map of strings to strings. */
    static Headers ofMap(MapData map) throws DecodeError {
        ArrayData names = map.keyArray();
        ArrayData values = map.valueArray();
        Headers headers = new Headers(map.numElements());
        for (int index = 0; index < map.numElements(); index++) {
            headers.add(name(names, index), value(values, index));
        }
        return headers;
    }

    /** Return headers from a map of strings to arrays of strings; a null array is invalid. */
    static Headers ofLists(MapData map) throws DecodeError {
        ArrayData names = map.keyArray();
        ArrayData lists = map.valueArray();
        Headers headers = new Headers(map.numElements());
        for (int index = 0; index < map.numElements(); index++) {
            Name name = name(names, index);
            require(!lists.isNullAt(index), ErrorCode.INVALID_HEADER_VALUE);
            ArrayData values = lists.getArray(index);
            for (int item = 0; item < values.numElements(); item++) {
                headers.add(name, value(values, item));
            }
        }
        return headers;
    }

    private static Name name(ArrayData texts, int index) throws DecodeError {
        require(!texts.isNullAt(index), ErrorCode.INVALID_HEADER_NAME);
        return Name.of(texts.getUTF8String(index));
    }

    private static byte[] value(ArrayData texts, int index) throws DecodeError {
        require(!texts.isNullAt(index), ErrorCode.INVALID_HEADER_VALUE);
        return Text.copy(texts.getUTF8String(index));
    }
}
