package org.apache.spark.sql.catalyst;

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;

public abstract class InternalRow implements SpecializedGetters {}
