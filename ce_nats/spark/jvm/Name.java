package io.cenats.spark;

import java.util.Arrays;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.spark.unsafe.types.UTF8String;

/**
 * A parsed header name. Senders use few names, so parsed names are cached; mirrors {@code ce_nats/arrow/_headers.py}.
 *
 * @param isContentType whether it is {@code Content-Type}, in any case
 * @param attribute the attribute of a {@code ce-} header, in lower case, or null for another header; bytes that are not
 *     UTF-8 are replaced, which is not a valid name either
 * @param place the attribute's index in {@link Attributes#CORE}, or {@link Attributes#EXTENSION}
 */
record Name(boolean isContentType, String attribute, int place) {
    private static final byte[] CONTENT_TYPE = Text.bytes("content-type");
    private static final byte[] PREFIX = Text.bytes("ce-");

    private static final ConcurrentHashMap<UTF8String, Name> KNOWN = new ConcurrentHashMap<>();
    /** Most names in the cache, and most bytes of one, so that no sender can make the cache grow without limit. */
    private static final int MAX_KNOWN = 1_000;
    private static final int MAX_KNOWN_LENGTH = 100;

    /** The parsed name, from the cache if it has it; null for null. */
    static Name of(UTF8String text) {
        if (text == null) {
            return null;
        }
        Name known = KNOWN.get(text);
        return known == null ? cached(text.getBytes()) : known;
    }

    private static Name cached(byte[] text) {
        Name name = of(text);
        if (text.length <= MAX_KNOWN_LENGTH && KNOWN.size() < MAX_KNOWN) {
            // A copy, because Spark may reuse the array.
            KNOWN.put(UTF8String.fromBytes(Arrays.copyOf(text, text.length)), name);
        }
        return name;
    }

    private static Name of(byte[] text) {
        String attribute = Text.startsWith(text, PREFIX) ? Text.folded(text, PREFIX.length) : null;
        int place = attribute == null ? Attributes.EXTENSION : Attributes.place(attribute);
        return new Name(Text.equalsFolded(text, CONTENT_TYPE), attribute, place);
    }
}
