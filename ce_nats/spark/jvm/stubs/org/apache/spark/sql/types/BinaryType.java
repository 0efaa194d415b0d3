package org.apache.spark.sql.types;

public abstract class BinaryType extends DataType {
    private static final long serialVersionUID = 1;
}
