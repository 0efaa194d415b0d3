package io.cenats.spark;

/**
 * Binary content mode, one {@code ce-} header per attribute and the data as payload; mirrors {@code
 * ce_nats/codec/binary.py}.
 *
 * <p>NATS binding, section 3.1. An empty payload means that the event has no data: a message cannot express the
 * difference.
 */
final class Binary {
    private Binary() {}

    /**
     * The event in {@code ce-} headers and a payload.
     *
     * @throws DecodeError for the first error in wire order, then for missing attributes
     */
    static Event decode(Headers headers, byte[] payload, ExtensionTypes types) throws DecodeError {
        Event event = new Event(ContentMode.BINARY, types);
        for (int place = 0; place < headers.size(); place++) {
            Name name = headers.name(place);
            if (name.attribute() != null) {
                decodeHeader(event, name.attribute(), name.place(), headers.value(place), types);
            }
        }
        Attributes.checkRequired(event);
        event.data = payload.length == 0 ? null : payload;
        return event;
    }

    private static void decodeHeader(Event event, String name, int place, byte[] value, ExtensionTypes types)
            throws DecodeError {
        if (event.has(name, place)) {
            throw new DecodeError(ErrorCode.DUPLICATE_ATTRIBUTE);
        }
        if (place == Attributes.EXTENSION) {
            Attributes.checkName(name);
        }
        // 3.1.3.2: "terminated by a CRLF sequence with OPTIONAL whitespace around the header value"
        Attributes.decode(event, name, place, Percent.decode(Text.strip(value)), types);
    }
}
