package io.cenats.spark;

import static io.cenats.spark.DecodeError.require;

import java.util.Arrays;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Header names and values in wire order, from any type of headers column; mirrors {@code ce_nats/message.py}. They may
 * be any bytes: headers that are not used are not checked.
 */
final class Headers {
    static final Headers NONE = new Headers(0);

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
     * Append a header.
     *
     * @param name a name, or null
     * @param value bytes of a value, or null
     * @throws DecodeError {@code invalid-header-name} if the name is null, {@code invalid-header-value} if the value is
     *     null
     */
    void add(UTF8String name, byte[] value) throws DecodeError {
        require(name != null, ErrorCode.INVALID_HEADER_NAME);
        require(value != null, ErrorCode.INVALID_HEADER_VALUE);
        if (size == names.length) {
            names = Arrays.copyOf(names, 2 * size + 1);
            values = Arrays.copyOf(values, 2 * size + 1);
        }
        names[size] = Name.of(name);
        values[size++] = value;
    }

    /** Return headers from an array of structs of two strings or binaries; null means no headers. */
    static Headers ofPairs(ArrayData pairs, boolean isNameBinary, boolean isValueBinary) throws DecodeError {
        if (pairs == null) {
            return NONE;
        }
        int count = pairs.numElements();
        Headers headers = new Headers(count);
        for (int index = 0; index < count; index++) {
            require(!pairs.isNullAt(index), ErrorCode.INVALID_HEADER_NAME);
            InternalRow pair = pairs.getStruct(index, 2);
            headers.add(text(pair, 0, isNameBinary), octets(pair, 1, isValueBinary));
        }
        return headers;
    }

    private static UTF8String text(InternalRow pair, int field, boolean isBinary) {
        if (pair.isNullAt(field)) {
            return null;
        }
        return isBinary ? UTF8String.fromBytes(pair.getBinary(field)) : pair.getUTF8String(field);
    }

    private static byte[] octets(InternalRow pair, int field, boolean isBinary) {
        if (pair.isNullAt(field)) {
            return null;
        }
        return isBinary ? pair.getBinary(field) : pair.getUTF8String(field).getBytes();
    }

    /** Return headers from a map of strings to strings; null means no headers. */
    static Headers ofMap(MapData map) throws DecodeError {
        if (map == null) {
            return NONE;
        }
        ArrayData names = map.keyArray();
        ArrayData values = map.valueArray();
        Headers headers = new Headers(map.numElements());
        for (int index = 0; index < map.numElements(); index++) {
            headers.add(text(names, index), octets(values, index));
        }
        return headers;
    }

    /** Return headers from a map of strings to arrays of strings; null means no headers, a null array is invalid. */
    static Headers ofLists(MapData map) throws DecodeError {
        if (map == null) {
            return NONE;
        }
        ArrayData names = map.keyArray();
        ArrayData lists = map.valueArray();
        Headers headers = new Headers(map.numElements());
        for (int index = 0; index < map.numElements(); index++) {
            UTF8String name = text(names, index);
            require(!lists.isNullAt(index), ErrorCode.INVALID_HEADER_VALUE);
            ArrayData values = lists.getArray(index);
            for (int item = 0; item < values.numElements(); item++) {
                headers.add(name, octets(values, item));
            }
        }
        return headers;
    }

    private static UTF8String text(ArrayData texts, int index) {
        return texts.isNullAt(index) ? null : texts.getUTF8String(index);
    }

    private static byte[] octets(ArrayData texts, int index) {
        return texts.isNullAt(index) ? null : texts.getUTF8String(index).getBytes();
    }
}
