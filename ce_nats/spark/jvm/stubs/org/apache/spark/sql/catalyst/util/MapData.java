package org.apache.spark.sql.catalyst.util;

public abstract class MapData {
    public int numElements() {
        return 0;
    }

    public ArrayData keyArray() {
        return null;
    }

    public ArrayData valueArray() {
        return null;
    }
}
