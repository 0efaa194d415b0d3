package io.cenats.spark;

import java.util.LinkedHashMap;
import java.util.Map;

/** An event as it was received: nothing added, nothing left out. Texts are valid UTF-8. */
final class Event {
    /** The attributes of {@link Attributes#CORE}; null where one was not sent. */
    final byte[][] core = new byte[Attributes.CORE.length][];

    /** The others, in wire order. */
    final Map<String, byte[]> extensions = new LinkedHashMap<>();

    /** Values of extensions whose types were declared, as Spark has them; null where one was not sent. */
    final Object[] typed;

    final ContentMode mode;

    /** Microseconds of Unix time, or {@link Timestamp#NONE}. */
    long time = Timestamp.NONE;

    /** The datacontenttype, or null. */
    MediaType mediaType;

    /** Null for no data. */
    byte[] data;

    /** Whether the data is that of a JSON event without a datacontenttype, which means application/json. */
    boolean isJson;

    Event(ContentMode mode, ExtensionTypes types) {
        this.mode = mode;
        this.typed = new Object[types.names().size()];
    }

    /** Whether there is an attribute of a name. */
    boolean has(String name, int place) {
        return place == Attributes.EXTENSION ? extensions.containsKey(name) : core[place] != null;
    }
}
