package org.apache.spark.sql.connector.catalog;

public interface Identifier {
    static Identifier of(String[] namespace, String name) {
        return null;
    }

    String[] namespace();

    String name();
}
