package org.apache.spark.sql.types;

import java.io.Serializable;

public abstract class DataType implements Serializable {
    private static final long serialVersionUID = 1;

    public abstract String simpleString();
}
