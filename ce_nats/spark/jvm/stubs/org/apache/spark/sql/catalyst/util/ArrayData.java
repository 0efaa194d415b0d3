package org.apache.spark.sql.catalyst.util;

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;

public abstract class ArrayData implements SpecializedGetters {
    public int numElements() {
        return 0;
    }
}
