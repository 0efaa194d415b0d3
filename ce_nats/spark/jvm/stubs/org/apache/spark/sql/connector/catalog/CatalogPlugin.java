package org.apache.spark.sql.connector.catalog;

import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public interface CatalogPlugin {
    void initialize(String name, CaseInsensitiveStringMap options);

    String name();
}
