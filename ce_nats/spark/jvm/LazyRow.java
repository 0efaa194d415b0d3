package io.cenats.spark;

import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;

/** A row that makes the value of a field when it is first read: most queries read few fields. */
abstract class LazyRow extends GenericInternalRow {
    private static final long serialVersionUID = 1;

    private final transient Object[] made;
    private transient boolean isComplete;

    LazyRow(Object[] empty) {
        super(empty);
        this.made = empty;
    }

    /** Return the value of a field, or null. */
    abstract Object make(int field);

    @Override
    public final Object genericGet(int field) {
        if (made[field] == null && !isComplete) {
            made[field] = make(field);
        }
        return made[field];
    }

    @Override
    public final int numFields() {
        return made.length;
    }

    /** Return all values. Spark also calls this to change one. */
    @Override
    public final Object[] values() {
        for (int field = 0; field < made.length; field++) {
            genericGet(field);
        }
        isComplete = true;
        return made;
    }

    /** Serialize a plain row with the same values. */
    protected final Object writeReplace() {
        return new GenericInternalRow(values());
    }
}
