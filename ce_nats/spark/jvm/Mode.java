package io.cenats.spark;

import static io.cenats.spark.DecodeError.require;

import java.util.Arrays;

/**
 * Detects whether a message is an event in binary mode, an event in structured mode, or not an event; mirrors {@code
 * ce_nats/codec/mode.py}.
 *
 * <p>NATS binding, section 3. The result depends on the headers, and on whether the payload is empty.
 *
 * @param mode the content mode
 * @param isMarked false if no header marks the message as a CloudEvent, so that it depends on the payload
 */
record Mode(ContentMode mode, boolean isMarked) {
    private static final byte[] CLOUDEVENTS = Text.bytes("application/cloudevents");
    private static final byte[] STRUCTURED_TYPE = Text.bytes("application/cloudevents+json");
    private static final byte[] BATCH = Text.bytes("application/cloudevents-batch");
    private static final byte[] OTHER_FORMAT = Text.bytes("application/cloudevents+");

    private static final Mode BINARY = new Mode(ContentMode.BINARY, true);
    private static final Mode STRUCTURED = new Mode(ContentMode.STRUCTURED, true);
    private static final Mode UNMARKED = new Mode(ContentMode.STRUCTURED, false);

    private static final ParseCache<ContentType> CONTENT_TYPES = new ParseCache<>(Mode::parse);

    /** What a Content-Type means: whether a message with it is structured, or an error. */
    private record ContentType(boolean isStructured, ErrorCode error) {}

    /**
     * Return the mode by the first rule that applies.
     *
     * @throws DecodeError {@code duplicate-header}, {@code batch-not-supported}, {@code unsupported-charset}, {@code
     *     unsupported-format}, {@code not-a-cloudevent}
     */
    static Mode detect(Headers headers, boolean hasData) throws DecodeError {
        byte[] contentType = null;
        boolean hasAttributes = false;
        for (int index = 0; index < headers.size(); index++) {
            Name name = headers.name(index);
            if (name.isContentType()) {
                // No specification defines which of several Content-Type headers is valid.
                require(contentType == null, ErrorCode.DUPLICATE_HEADER);
                contentType = headers.value(index);
            }
            hasAttributes |= name.attribute() != null;
        }
        if (contentType != null && isStructured(contentType)) {
            return STRUCTURED;
        }
        if (hasAttributes) {
            return BINARY;
        }
        require(hasData, ErrorCode.NOT_A_CLOUDEVENT);
        return UNMARKED;
    }

    /** Return whether the Content-Type makes a message structured. */
    private static boolean isStructured(byte[] contentType) throws DecodeError {
        ContentType known = CONTENT_TYPES.get(contentType);
        if (known.error != null) {
            throw new DecodeError(known.error);
        }
        return known.isStructured;
    }

    private static ContentType parse(byte[] contentType) {
        byte[] essence = essence(contentType);
        if (Text.startsWith(essence, BATCH)) {
            return new ContentType(false, ErrorCode.BATCH_NOT_SUPPORTED);
        }
        if (Text.equalsIgnoringCase(essence, CLOUDEVENTS) || Text.equalsIgnoringCase(essence, STRUCTURED_TYPE)) {
            MediaType type = MediaType.parse(Text.strip(contentType));
            return new ContentType(true, type == null || type.isUtf8() ? null : ErrorCode.UNSUPPORTED_CHARSET);
        }
        return new ContentType(false, Text.startsWith(essence, OTHER_FORMAT) ? ErrorCode.UNSUPPORTED_FORMAT : null);
    }

    private static byte[] essence(byte[] contentType) {
        int end = Text.indexOf(contentType, ';', 0);
        return Text.strip(end < 0 ? contentType : Arrays.copyOf(contentType, end));
    }
}
