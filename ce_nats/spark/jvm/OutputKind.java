package io.cenats.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;

/** The functions, by the kind of their result. */
enum OutputKind {
    /** The event as one struct. */
    FROM_NATS("from_nats") {
        @Override
        StructType schema(StructType declared) {
            return Rows.EVENT;
        }

        @Override
        InternalRow row(Event event) {
            return Rows.ofEvent(event);
        }

        @Override
        InternalRow row(ErrorCode error, ExtensionTypes types) {
            return Rows.ofError(error);
        }
    },
    /** The columns of {@code explode_cloudevents}, as the fields of a struct. */
    EVENT_COLUMNS("event_columns") {
        @Override
        StructType schema(StructType declared) {
            return Rows.flat(declared);
        }

        @Override
        InternalRow row(Event event) {
            return Rows.flatOfEvent(event);
        }

        @Override
        InternalRow row(ErrorCode error, ExtensionTypes types) {
            return Rows.flatOfError(error, types.names().size());
        }
    };

    private final String name;

    OutputKind(String name) {
        this.name = name;
    }

    /**
     * Return the schema of the result.
     *
     * @param declared types of extensions, as the fields of a struct
     */
    abstract StructType schema(StructType declared);

    /** Return the row of an event. */
    abstract InternalRow row(Event event);

    /** Return the row of a message that is not an event. */
    abstract InternalRow row(ErrorCode error, ExtensionTypes types);

    @Override
    public String toString() {
        return name;
    }
}
