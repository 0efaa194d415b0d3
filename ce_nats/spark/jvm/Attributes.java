package io.cenats.spark;

import static io.cenats.spark.DecodeError.require;

import java.util.Arrays;
import java.util.Base64;

/**
 * Checks of attribute names and values; mirrors {@code ce_nats/codec/attributes.py}.
 *
 * <p>CloudEvents 1.0 "Naming Conventions", "Type System", "Context Attributes". {@link Binary} and {@link Structured}
 * handle the encoding of each content mode.
 */
final class Attributes {
    /** The eight attributes of the specification, in the order of the columns. */
    static final String[] CORE = {
        "specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema"
    };

    static final int SPECVERSION = 0;
    static final int TIME = 5;
    static final int DATACONTENTTYPE = 6;
    static final int DATASCHEMA = 7;
    /** Number of required attributes, which are the first ones of {@link #CORE}. */
    static final int REQUIRED = 4;

    static final int EXTENSION = -1;

    private static final byte[] VERSION = Text.bytes("1.0");
    private static final byte[] TRUE = Text.bytes("true");
    private static final byte[] FALSE = Text.bytes("false");
    private static final int MAX_DIGITS = "-2147483648".length();

    private Attributes() {}

    /** Return the index of an attribute in {@link #CORE}, or {@link #EXTENSION}. */
    static int index(String name) {
        return switch (name) {
            case "specversion" -> SPECVERSION;
            case "id" -> 1;
            case "source" -> 2;
            case "type" -> 3;
            case "subject" -> 4;
            case "time" -> TIME;
            case "datacontenttype" -> DATACONTENTTYPE;
            case "dataschema" -> DATASCHEMA;
            default -> EXTENSION;
        };
    }

    /**
     * Check a name.
     *
     * <p>"MUST consist of lower-case letters ('a' to 'z') or digits ('0' to '9') from the ASCII character set."
     *
     * @throws DecodeError {@code invalid-attribute-name}, also for {@code data}
     */
    static void checkName(String name) throws DecodeError {
        boolean isName = !name.isEmpty() && !name.equals("data");
        for (int at = 0; isName && at < name.length(); at++) {
            char character = name.charAt(at);
            isName = character >= 'a' && character <= 'z' || Text.isDigit(character);
        }
        require(isName, ErrorCode.INVALID_ATTRIBUTE_NAME);
    }

    /**
     * Check that a value has no control characters or noncharacters.
     *
     * @param value valid UTF-8, so without surrogates
     * @throws DecodeError {@code invalid-character}
     */
    static void checkCharacters(byte[] value) throws DecodeError {
        if (Text.isPlain(value)) {
            return;
        }
        for (int at = 0; at < value.length; at++) {
            byte octet = value[at];
            if (octet < ' ' || octet == 0x7F) {
                require(octet < 0 && !isForbidden(value, at), ErrorCode.INVALID_CHARACTER);
            }
        }
    }

    /** Return whether a C1 control or a noncharacter begins at an index, which may be inside a character. */
    private static boolean isForbidden(byte[] value, int at) {
        int first = value[at] & 0xFF;
        if (first < 0xC0) {
            return false;
        }
        int second = value[at + 1] & 0x3F;
        if (first < 0xE0) {
            return first == 0xC2 && second < 0x20; // U+0080 to U+009F
        }
        int third = value[at + 2] & 0x3F;
        int character = (first < 0xF0)
                ? (first & 0x0F) << 12 | second << 6 | third
                : (first & 0x07) << 18 | second << 12 | third << 6 | value[at + 3] & 0x3F;
        return character >= 0xFDD0 && character <= 0xFDEF || (character & 0xFFFE) == 0xFFFE;
    }

    /**
     * Check that an event has all required attributes.
     *
     * @throws DecodeError {@code missing-attribute}
     */
    static void checkRequired(Event event) throws DecodeError {
        for (int index = 0; index < REQUIRED; index++) {
            require(event.core[index] != null, ErrorCode.MISSING_ATTRIBUTE);
        }
    }

    /**
     * Check a value and store it in an event.
     *
     * @param name valid attribute name
     * @param index its index in {@link #CORE}, or {@link #EXTENSION}
     * @param text canonical string of the value
     * @throws DecodeError {@code invalid-character}, or the code of the first broken rule of the attribute
     */
    static void decode(Event event, String name, int index, byte[] text, ExtensionTypes types) throws DecodeError {
        checkCharacters(text);
        if (index == EXTENSION) {
            int declared = types.names().indexOf(name);
            if (declared >= 0) {
                event.typed[declared] = decodeExtension(text, types.kinds().get(declared));
            }
            event.addExtension(name, text);
            return;
        }
        require(text.length > 0, ErrorCode.EMPTY_ATTRIBUTE);
        switch (index) {
            case SPECVERSION -> require(Arrays.equals(text, VERSION), ErrorCode.UNSUPPORTED_SPECVERSION);
            case TIME -> event.time = Timestamp.parse(text);
            case DATACONTENTTYPE -> {
                event.mediaType = MediaType.parse(text);
                require(event.mediaType != null, ErrorCode.INVALID_MEDIA_TYPE);
            }
            case DATASCHEMA -> require(isAbsoluteUri(text), ErrorCode.INVALID_URI);
            default -> {} // any text
        }
        event.core[index] = index == TIME ? Timestamp.canonical(text) : text;
    }

    /** Return whether a text starts with a scheme, as an absolute-URI of RFC 3986 4.3; the rest is not checked. */
    private static boolean isAbsoluteUri(byte[] text) {
        int at = 0;
        while (at < text.length && (Text.isLetter(text[at]) || at > 0 && isInScheme(text[at]))) {
            at++;
        }
        return at > 0 && at < text.length && text[at] == ':';
    }

    private static boolean isInScheme(byte octet) {
        return Text.isDigit(octet) || octet == '+' || octet == '.' || octet == '-';
    }

    /**
     * Return the value of an extension with a declared type, as Spark represents it in a row.
     *
     * @throws DecodeError {@code invalid-boolean}, {@code invalid-integer}, {@code integer-out-of-range}, {@code
     *     invalid-base64}, {@code invalid-timestamp}
     */
    private static Object decodeExtension(byte[] text, ExtensionTypes.Kind kind) throws DecodeError {
        return switch (kind) {
            case STRING -> Rows.string(text);
            case BOOLEAN -> decodeBoolean(text);
            case INTEGER -> decodeInteger(text);
            case BINARY -> decodeBase64(text);
            case TIMESTAMP -> {
                long instant = Timestamp.parse(text);
                yield instant == Timestamp.NONE ? null : (Object) instant;
            }
        };
    }

    private static boolean decodeBoolean(byte[] text) throws DecodeError {
        boolean isTrue = Arrays.equals(text, TRUE);
        require(isTrue || Arrays.equals(text, FALSE), ErrorCode.INVALID_BOOLEAN);
        return isTrue;
    }

    /** "the integer component of the JSON Number, optionally prefixed with a minus sign" */
    private static int decodeInteger(byte[] text) throws DecodeError {
        int start = text.length > 0 && text[0] == '-' ? 1 : 0;
        boolean isInteger = text.length == start + 1 || text.length > start && text[start] != '0';
        for (int at = start; isInteger && at < text.length; at++) {
            isInteger = Text.isDigit(text[at]);
        }
        require(isInteger, ErrorCode.INVALID_INTEGER);
        return checkInteger(text);
    }

    /**
     * Return the integer in digits with or without a minus sign.
     *
     * @throws DecodeError {@code integer-out-of-range} if it is out of range for 32 bits
     */
    static int checkInteger(byte[] digits) throws DecodeError {
        require(digits.length <= MAX_DIGITS, ErrorCode.INTEGER_OUT_OF_RANGE);
        boolean isNegative = digits[0] == '-';
        long value = 0;
        for (int at = isNegative ? 1 : 0; at < digits.length; at++) {
            value = value * 10 + digits[at] - '0';
        }
        value = isNegative ? -value : value;
        require(value == (int) value, ErrorCode.INTEGER_OUT_OF_RANGE);
        return (int) value;
    }

    /**
     * Decode base64 with the standard alphabet, padded, without other characters (RFC 4648 4). Trailing bits are not
     * checked.
     *
     * @throws DecodeError {@code invalid-base64}
     */
    static byte[] decodeBase64(byte[] text) throws DecodeError {
        require(text.length % 4 == 0, ErrorCode.INVALID_BASE64);
        try {
            return Base64.getDecoder().decode(text);
        } catch (IllegalArgumentException error) {
            throw new DecodeError(ErrorCode.INVALID_BASE64);
        }
    }
}
