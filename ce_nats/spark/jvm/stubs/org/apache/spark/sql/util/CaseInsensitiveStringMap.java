package org.apache.spark.sql.util;

public class CaseInsensitiveStringMap {}
