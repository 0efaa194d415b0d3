package org.apache.spark.sql.types;

public abstract class ArrayType extends DataType {
    private static final long serialVersionUID = 1;

    public abstract DataType elementType();
}
