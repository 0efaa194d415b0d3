package org.apache.spark.sql.catalyst.util;

public class GenericArrayData extends ArrayData {
    public GenericArrayData(Object[] values) {}
}
