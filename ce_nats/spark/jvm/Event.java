package io.cenats.spark;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * An event as it was received, without added or removed attributes; mirrors {@code ce_nats/codec/event.py}. Texts are
 * valid UTF-8.
 */
final class Event {
    /** The attributes of {@link Attributes#CORE}; null where one was not sent. */
    final byte[][] core = new byte[Attributes.CORE.length][];

    /** Extension attributes, in wire order. */
    final Map<String, byte[]> extensions = new LinkedHashMap<>();

    /** Values of extensions with a declared type, in Spark's representation; null where one was not sent. */
    final Object[] typed;

    final ContentMode mode;

    /** Microseconds of Unix time, or {@link Timestamp#NONE}. */
    long time = Timestamp.NONE;

    /** The datacontenttype, or null. */
    MediaType mediaType;

    /** The data, or null if the event has none. */
    byte[] data;

    /** Whether this is a JSON event with data and without a datacontenttype, which means application/json. */
    boolean isJson;

    Event(ContentMode mode, ExtensionTypes types) {
        this.mode = mode;
        this.typed = new Object[types.names().size()];
    }

    /** Whether the event has an attribute. */
    boolean has(String name, int place) {
        return place == Attributes.EXTENSION ? extensions.containsKey(name) : core[place] != null;
    }
}
