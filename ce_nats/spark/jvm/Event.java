package io.cenats.spark;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * An event as received, without added or removed attributes; mirrors {@code ce_nats/codec/event.py}. Texts are
 * valid UTF-8.
 */
final class Event {
    /** Values of {@link Attributes#CORE}; null for an attribute that the event does not have. */
    final byte[][] core = new byte[Attributes.CORE.length][];

    /** Extension attributes, in wire order. */
    private Map<String, byte[]> extensions = Map.of();

    /** Values of extensions with a declared type, as Spark represents them; null for those without a value. */
    final Object[] typed;

    final ContentMode mode;

    /** Microseconds of Unix time, or {@link Timestamp#NONE}. */
    long time = Timestamp.NONE;

    /** Parsed datacontenttype, or null. */
    MediaType mediaType;

    /** The data, or null if the event has no data, or there is a {@link #dataError}. */
    byte[] data;

    /** Why the event has data that is not in {@link #data}: it was not delivered, or its charset does not have it. */
    ErrorCode dataError;

    /** Whether this is a JSON event with data and without a datacontenttype, which means application/json. */
    boolean isJson;

    Event(ContentMode mode, ExtensionTypes types) {
        this.mode = mode;
        this.typed = new Object[types.names().size()];
    }

    /** Return whether the event has an attribute. */
    boolean has(String name, int index) {
        return index == Attributes.EXTENSION ? extensions.containsKey(name) : core[index] != null;
    }

    void addExtension(String name, byte[] text) {
        if (extensions.isEmpty()) {
            extensions = new LinkedHashMap<>();
        }
        extensions.put(name, text);
    }

    Map<String, byte[]> extensions() {
        return extensions;
    }
}
