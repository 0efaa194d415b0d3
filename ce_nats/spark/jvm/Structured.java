package io.cenats.spark;

import static io.cenats.spark.DecodeError.require;

import java.util.Arrays;
import java.util.Map;

/**
 * Structured content mode, the whole event as one JSON object in the payload; mirrors {@code
 * ce_nats/codec/structured.py}.
 *
 * <p>NATS binding, section 3.2; JSON event format, sections 2 and 3. The payload is one object in strict JSON and
 * UTF-8, never a batch; every member is an attribute, {@code data} or {@code data_base64}.
 */
final class Structured {
    private static final byte[] BOM = {(byte) 0xEF, (byte) 0xBB, (byte) 0xBF};
    private static final String DATA = "data";
    private static final String DATA_BASE64 = "data_base64";

    private Structured() {}

    /**
     * Decode the event in a payload.
     *
     * @param payload UTF-8 JSON text; one leading byte order mark is ignored
     * @param isMarked false if no header marks the message as a CloudEvent
     * @throws DecodeError for a duplicated member, then for the first error in wire order, then for missing attributes,
     *     then for the data; if {@code isMarked} is false, {@code not-a-cloudevent} for a payload that is not a JSON
     *     object with at least one required attribute
     */
    static Event decode(byte[] payload, boolean isMarked, ExtensionTypes types) throws DecodeError {
        Map<String, Json.Value> members = members(payload, isMarked);
        Event event = new Event(ContentMode.STRUCTURED, types);
        byte[] binary = null;
        for (Map.Entry<String, Json.Value> member : members.entrySet()) {
            if (member.getKey().equals(DATA_BASE64)) {
                binary = decodeDataBase64(member.getValue());
            } else if (!member.getKey().equals(DATA)) {
                decodeMember(event, member.getKey(), member.getValue(), types);
            }
        }
        Json.Value data = members.get(DATA);
        require(data == null || binary == null, ErrorCode.DATA_CONFLICT);
        Attributes.checkRequired(event);
        if (data == null) {
            event.data = binary;
        } else {
            decodeData(event, data);
        }
        event.isJson = data != null && event.mediaType == null;
        return event;
    }

    private static Map<String, Json.Value> members(byte[] payload, boolean isMarked) throws DecodeError {
        Json json = new Json(payload, hasBom(payload) ? BOM.length : 0);
        Map<String, Json.Value> members;
        try {
            require(Text.isUtf8(payload), ErrorCode.INVALID_UTF8);
            members = json.members();
        } catch (DecodeError error) {
            throw isMarked ? error : new DecodeError(ErrorCode.NOT_A_CLOUDEVENT);
        }
        require(isMarked || looksLikeAnEvent(members), ErrorCode.NOT_A_CLOUDEVENT);
        // "Each attribute MUST appear at most once"
        require(!json.hasRepeats(), ErrorCode.DUPLICATE_ATTRIBUTE);
        return members;
    }

    private static boolean hasBom(byte[] payload) {
        return payload.length >= BOM.length && Arrays.equals(payload, 0, BOM.length, BOM, 0, BOM.length);
    }

    private static boolean looksLikeAnEvent(Map<String, Json.Value> members) {
        boolean hasRequired = false;
        for (int index = 0; index < Attributes.REQUIRED; index++) {
            hasRequired |= members.containsKey(Attributes.CORE[index]);
        }
        return hasRequired;
    }

    private static void decodeMember(Event event, String name, Json.Value value, ExtensionTypes types)
            throws DecodeError {
        int index = Attributes.index(name);
        if (index == Attributes.EXTENSION) {
            Attributes.checkName(name);
        }
        if (value.kind() == Json.Kind.NULL) {
            return; // an unset attribute, whose name must be valid, too
        }
        byte[] text = value.text();
        if (index != Attributes.EXTENSION) {
            require(value.kind() == Json.Kind.STRING, ErrorCode.INVALID_ATTRIBUTE_TYPE);
        } else if (value.kind() == Json.Kind.INTEGER) {
            text = Text.bytes(String.valueOf(Attributes.checkInteger(text))); // -0 is 0
        } else {
            boolean isScalar = value.kind() == Json.Kind.STRING || value.kind() == Json.Kind.BOOLEAN;
            require(isScalar, ErrorCode.INVALID_ATTRIBUTE_TYPE);
        }
        Attributes.decode(event, name, index, text, types);
    }

    private static byte[] decodeDataBase64(Json.Value value) throws DecodeError {
        if (value.kind() == Json.Kind.NULL) {
            return null;
        }
        require(value.kind() == Json.Kind.STRING, ErrorCode.INVALID_DATA);
        return Attributes.decodeBase64(value.text());
    }

    /** Set the bytes of data: JSON text unchanged, other text in its charset; or why the charset does not have it. */
    private static void decodeData(Event event, Json.Value data) throws DecodeError {
        MediaType type = event.mediaType;
        if (type == null || type.isJson()) {
            event.data = data.json();
            return;
        }
        require(data.kind() == Json.Kind.STRING, ErrorCode.INVALID_DATA);
        try {
            event.data = Charsets.encode(data.text(), type.charset());
        } catch (DecodeError error) {
            event.dataError = error.code;
        }
    }
}
