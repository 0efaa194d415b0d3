package org.apache.spark.sql.connector.catalog.functions;

import org.apache.spark.sql.types.DataType;

public interface BoundFunction extends Function {
    DataType[] inputTypes();

    DataType resultType();

    boolean isResultNullable();

    String canonicalName();
}
