package org.apache.spark.sql.catalyst.util;

public class ArrayBasedMapData extends MapData {
    public ArrayBasedMapData(ArrayData keys, ArrayData values) {}
}
