package io.cenats.spark;

import java.util.Arrays;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.spark.unsafe.types.UTF8String;

/**
 * What the name of a header says. Senders have few names, so each is looked at once, as in {@code
 * ce_nats/arrow/headers.py}.
 *
 * @param isUtf8 whether the name is valid UTF-8; nothing else is known of one that is not
 * @param isContentType whether it is {@code Content-Type}, in any case
 * @param attribute the attribute that a {@code ce-} header is for, in lower case, or null for another header
 * @param place the attribute's place in {@link Attributes#CORE}, or {@link Attributes#EXTENSION}
 */
record Name(boolean isUtf8, boolean isContentType, String attribute, int place) {
    private static final byte[] CONTENT_TYPE = Text.bytes("content-type");
    private static final byte[] PREFIX = Text.bytes("ce-");

    private static final ConcurrentHashMap<UTF8String, Name> KNOWN = new ConcurrentHashMap<>();
    /** Names that are kept, and bytes of one: nobody makes them take more room. */
    private static final int MAX_KNOWN = 1_000;
    private static final int MAX_KNOWN_LENGTH = 100;

    /** What a name says; null is none. */
    static Name of(UTF8String text) {
        if (text == null) {
            return null;
        }
        Name known = KNOWN.get(text);
        return known == null ? learnt(text.getBytes()) : known;
    }

    private static Name learnt(byte[] text) {
        Name name = of(text);
        if (text.length <= MAX_KNOWN_LENGTH && KNOWN.size() < MAX_KNOWN) {
            // A copy, because Spark may use the bytes again.
            KNOWN.put(UTF8String.fromBytes(Arrays.copyOf(text, text.length)), name);
        }
        return name;
    }

    private static Name of(byte[] text) {
        boolean isUtf8 = Text.isUtf8(text);
        String attribute = isUtf8 && Text.startsWith(text, PREFIX) ? Text.folded(text, PREFIX.length) : null;
        int place = attribute == null ? Attributes.EXTENSION : Attributes.place(attribute);
        return new Name(isUtf8, Text.equalsFolded(text, CONTENT_TYPE), attribute, place);
    }
}
