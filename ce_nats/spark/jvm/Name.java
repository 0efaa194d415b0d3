package io.cenats.spark;

import java.util.Arrays;

import org.apache.spark.unsafe.types.UTF8String;

/**
 * A parsed header name. Senders use few names, so parsed names are cached; mirrors {@code sort_names} of {@code
 * ce_nats/codec/mode.py}.
 *
 * @param isContentType true for {@code Content-Type}, in any case
 * @param isSize true for {@code Nats-Msg-Size}, of a message without its payload
 * @param attribute the attribute of a {@code ce-} header, in lower case, or null for another header; bytes that are not
 *     UTF-8 are replaced by characters that are invalid in a name, too
 * @param index the attribute's index in {@link Attributes#CORE}, or {@link Attributes#EXTENSION}
 */
record Name(boolean isContentType, boolean isSize, String attribute, int index) {
    private static final byte[] CONTENT_TYPE = Text.bytes("content-type");
    private static final byte[] SIZE = Text.bytes("Nats-Msg-Size");
    private static final byte[] PREFIX = Text.bytes("ce-");

    private static final ParseCache<Name> KNOWN = new ParseCache<>(Name::parse);

    /** Return the parsed name. */
    static Name of(UTF8String text) {
        if (text.getBaseObject() instanceof byte[] array) {
            int start = Text.start(text);
            return KNOWN.get(array, start, start + text.numBytes());
        }
        return of(text.getBytes());
    }

    /** Return the parsed name. */
    static Name of(byte[] text) {
        return KNOWN.get(text);
    }

    private static Name parse(byte[] text) {
        String attribute = Text.startsWith(text, PREFIX) ? Text.lowerCased(text, PREFIX.length) : null;
        int index = attribute == null ? Attributes.EXTENSION : Attributes.index(attribute);
        boolean isContentType = Text.equalsIgnoringCase(text, CONTENT_TYPE);
        return new Name(isContentType, Arrays.equals(text, SIZE), attribute, index);
    }

    /** Return whether the value of the header has a meaning. */
    boolean isUsed() {
        return isContentType || isSize || attribute != null;
    }
}
