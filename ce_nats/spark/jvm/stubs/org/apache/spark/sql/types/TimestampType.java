package org.apache.spark.sql.types;

public abstract class TimestampType extends DataType {
    private static final long serialVersionUID = 1;
}
