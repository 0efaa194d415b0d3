package org.apache.spark.sql.connector.catalog.functions;

import java.io.Serializable;

public interface Function extends Serializable {
    String name();
}
