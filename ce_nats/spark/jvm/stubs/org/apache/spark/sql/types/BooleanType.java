package org.apache.spark.sql.types;

public abstract class BooleanType extends DataType {
    private static final long serialVersionUID = 1;
}
