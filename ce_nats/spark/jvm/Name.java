package io.cenats.spark;

import java.util.Arrays;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.spark.unsafe.types.UTF8String;

/**
 * A parsed header name. Senders use few names, so parsed names are cached; mirrors {@code sort_names} of {@code
 * ce_nats/codec/mode.py}.
 *
 * @param isContentType true for {@code Content-Type}, in any case
 * @param attribute the attribute of a {@code ce-} header, in lower case, or null for another header; bytes that are not
 *     UTF-8 are replaced by characters that are invalid in a name, too
 * @param index the attribute's index in {@link Attributes#CORE}, or {@link Attributes#EXTENSION}
 */
record Name(boolean isContentType, String attribute, int index) {
    private static final byte[] CONTENT_TYPE = Text.bytes("content-type");
    private static final byte[] PREFIX = Text.bytes("ce-");

    private static final ConcurrentHashMap<UTF8String, Name> KNOWN = new ConcurrentHashMap<>();
    /** Maximum number of cached names, and of bytes in one: senders must not make the cache grow without limit. */
    private static final int MAX_KNOWN = 1_000;
    private static final int MAX_KNOWN_LENGTH = 100;

    /** Return the parsed name, from the cache if possible; null for null. */
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
        String attribute = Text.startsWith(text, PREFIX) ? Text.lowerCased(text, PREFIX.length) : null;
        int index = attribute == null ? Attributes.EXTENSION : Attributes.index(attribute);
        return new Name(Text.equalsIgnoringCase(text, CONTENT_TYPE), attribute, index);
    }
}
