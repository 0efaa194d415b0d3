package org.apache.spark.sql.connector.catalog.functions;

public interface ScalarFunction<R> extends BoundFunction {}
