package org.apache.spark.sql.types;

public class DataTypes {
    public static final DataType StringType = null;
    public static final DataType BinaryType = null;
    public static final DataType BooleanType = null;
    public static final DataType TimestampType = null;

    public static ArrayType createArrayType(DataType element) {
        return null;
    }

    public static MapType createMapType(DataType key, DataType value, boolean isNullable) {
        return null;
    }

    public static StructField createStructField(String name, DataType type, boolean isNullable) {
        return null;
    }

    public static StructType createStructType(StructField[] fields) {
        return null;
    }
}
