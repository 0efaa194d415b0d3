package io.cenats.spark;

import java.io.Serializable;
import java.util.List;

import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;

/**
 * The declared types of extension attributes; mirrors {@code ExtensionTypes} of {@code ce_nats/codec/attributes.py}.
 *
 * @param names attribute names
 * @param kinds their types, in the same order
 */
record ExtensionTypes(List<String> names, List<Kind> kinds) implements Serializable {
    /** The types that an extension can be declared with. */
    enum Kind {
        STRING,
        INTEGER,
        BOOLEAN,
        BINARY,
        TIMESTAMP
    }

    static ExtensionTypes of(StructType declared) {
        List<StructField> fields = List.of(declared.fields());
        return new ExtensionTypes(
                fields.stream().map(StructField::name).toList(),
                fields.stream().map(field -> kind(field.dataType())).toList());
    }

    private static Kind kind(DataType type) {
        if (type instanceof StringType) {
            return Kind.STRING;
        }
        if (type instanceof IntegerType) {
            return Kind.INTEGER;
        }
        if (type instanceof BooleanType) {
            return Kind.BOOLEAN;
        }
        if (type instanceof BinaryType) {
            return Kind.BINARY;
        }
        if (type instanceof TimestampType) {
            return Kind.TIMESTAMP;
        }
        throw new UnsupportedOperationException(
                "the type of an extension must be string, int, boolean, binary or timestamp, got "
                        + type.simpleString());
    }
}
