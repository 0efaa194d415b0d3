package org.apache.spark.sql.catalyst.analysis;

import org.apache.spark.sql.connector.catalog.Identifier;

public class NoSuchFunctionException extends Exception {
    private static final long serialVersionUID = 1;

    public NoSuchFunctionException(Identifier identifier) {}
}
