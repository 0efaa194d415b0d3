package io.cenats.spark;

import java.io.Serializable;

import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * The properties of a type of headers column that are needed to read it.
 *
 * @param isNameBinary whether names are binary in an array of structs
 * @param isValueBinary whether values are binary in an array of structs
 * @param hasLists whether the values of a map are arrays
 */
record HeaderColumnType(boolean isNameBinary, boolean isValueBinary, boolean hasLists) implements Serializable {
    private static final HeaderColumnType PLAIN = new HeaderColumnType(false, false, false);
    private static final HeaderColumnType LISTS = new HeaderColumnType(false, false, true);

    /**
     * Return the properties of a type.
     *
     * @param headers an array of structs of two strings or binaries, a map from strings to strings or to arrays of
     *     strings, or a raw header block in a binary
     * @throws UnsupportedOperationException it is another type
     */
    static HeaderColumnType of(DataType headers) {
        if (headers instanceof BinaryType) {
            return PLAIN;
        }
        if (headers instanceof MapType map && map.keyType() instanceof StringType) {
            if (map.valueType() instanceof StringType) {
                return PLAIN;
            }
            if (map.valueType() instanceof ArrayType list && list.elementType() instanceof StringType) {
                return LISTS;
            }
        }
        if (headers instanceof ArrayType array && array.elementType() instanceof StructType pair) {
            return ofPair(pair);
        }
        throw new UnsupportedOperationException("headers must be array<struct<key:string,value:string>>, "
                + "map<string,string>, map<string,array<string>> or binary (a raw header block), got "
                + headers.simpleString());
    }

    private static HeaderColumnType ofPair(StructType pair) {
        StructField[] fields = pair.fields();
        if (fields.length != 2 || !isText(fields[0]) || !isText(fields[1])) {
            throw new UnsupportedOperationException(
                    "a header must be a struct of two strings or binaries, got " + pair.simpleString());
        }
        return new HeaderColumnType(isBinary(fields[0]), isBinary(fields[1]), false);
    }

    private static boolean isText(StructField field) {
        return field.dataType() instanceof StringType || isBinary(field);
    }

    private static boolean isBinary(StructField field) {
        return field.dataType() instanceof BinaryType;
    }
}
