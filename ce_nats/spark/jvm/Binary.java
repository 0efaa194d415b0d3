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
     * Decode the event in {@code ce-} headers and a payload.
     *
     * @throws DecodeError for the first error in wire order, then for missing attributes
     */
    static Event decode(Headers headers, byte[] payload, ExtensionTypes types) throws DecodeError {
        Event event = new Event(ContentMode.BINARY, types);
        for (int index = 0; index < headers.size(); index++) {
            Name name = headers.name(index);
            if (name.attribute() != null) {
                decodeHeader(event, name.attribute(), name.index(), headers.value(index), types);
            }
        }
        Attributes.checkRequired(event);
        event.data = payload.length == 0 ? null : payload;
        return event;
    }

    private static void decodeHeader(Event event, String name, int index, byte[] value, ExtensionTypes types)
            throws DecodeError {
        if (event.has(name, index)) {
            throw new DecodeError(ErrorCode.DUPLICATE_ATTRIBUTE);
        }
        if (index == Attributes.EXTENSION) {
            Attributes.checkName(name);
        }
        // 3.1.3.2: "terminated by a CRLF sequence with OPTIONAL whitespace around the header value"
        Attributes.decode(event, name, index, Percent.decode(Text.strip(value)), types);
    }
}
