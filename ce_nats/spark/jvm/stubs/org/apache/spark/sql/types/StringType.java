package org.apache.spark.sql.types;

public abstract class StringType extends DataType {
    private static final long serialVersionUID = 1;
}
