package org.apache.spark.sql.catalyst.expressions;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.unsafe.types.UTF8String;

public interface SpecializedGetters {
    default boolean isNullAt(int place) {
        return false;
    }

    default UTF8String getUTF8String(int place) {
        return null;
    }

    default byte[] getBinary(int place) {
        return null;
    }

    default InternalRow getStruct(int place, int fields) {
        return null;
    }

    default ArrayData getArray(int place) {
        return null;
    }
}
