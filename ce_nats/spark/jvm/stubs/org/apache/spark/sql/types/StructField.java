package org.apache.spark.sql.types;

public abstract class StructField {
    public abstract String name();

    public abstract DataType dataType();
}
