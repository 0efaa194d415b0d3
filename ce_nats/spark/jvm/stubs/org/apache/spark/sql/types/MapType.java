package org.apache.spark.sql.types;

public abstract class MapType extends DataType {
    private static final long serialVersionUID = 1;

    public abstract DataType keyType();

    public abstract DataType valueType();
}
