package org.apache.spark.sql.types;

public abstract class NullType extends DataType {
    private static final long serialVersionUID = 1;
}
