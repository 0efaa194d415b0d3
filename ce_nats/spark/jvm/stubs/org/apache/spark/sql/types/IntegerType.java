package org.apache.spark.sql.types;

public abstract class IntegerType extends DataType {
    private static final long serialVersionUID = 1;
}
