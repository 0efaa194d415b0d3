package io.cenats.spark;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Parses strict RFC 8259 JSON: the members of an object, in wire order, with their types.
 *
 * <p>Errors are: unpaired surrogates, numbers out of range for a double, integers with more characters than Python
 * reads, and text after the document. So the same documents are valid as with msgspec in {@code ce_nats/codec/data.py}.
 */
final class Json {
    /** Maximum nesting of arrays and objects in data, including the outermost: {@code ce_nats/codec/_nesting.py}. */
    static final int MAX_LEVELS = 128;

    /** Maximum number of characters of an integer. */
    private static final int MAX_INTEGER_LENGTH = 4300;
    /** A number without exponent and with at most this number of digits before the point is in range for a double. */
    private static final int MAX_DIGITS = 308;

    /** Types of JSON values; a number with a fraction or an exponent is a float, whatever its value. */
    enum Kind {
        STRING,
        INTEGER,
        FLOAT,
        BOOLEAN,
        NULL,
        CONTAINER
    }

    /**
     * A value as part of a document.
     *
     * @param isEscaped whether a string has escapes
     */
    record Value(Kind kind, byte[] document, int start, int end, boolean isEscaped) {
        /** Return the JSON text. */
        byte[] json() {
            return Arrays.copyOfRange(document, start, end);
        }

        /** Return the unescaped text of a string, or the JSON text of any other value. */
        byte[] text() {
            if (kind != Kind.STRING) {
                return json();
            }
            return isEscaped
                    ? unescaped(document, start + 1, end - 1)
                    : Arrays.copyOfRange(document, start + 1, end - 1);
        }
    }

    private static final ParseCache<String> NAMES =
            new ParseCache<>(text -> new String(text, StandardCharsets.UTF_8));

    private final byte[] document;
    private int at;
    private boolean hasRepeats;
    /** Whether an escape was skipped since this was set to false. */
    private boolean hasEscape;

    /**
     * @param document valid UTF-8
     * @param start index of its first byte
     */
    Json(byte[] document, int start) {
        this.document = document;
        this.at = start;
    }

    /**
     * Return the members of the document, which must be an object; the first of members with the same name. Call this
     * once.
     *
     * @throws DecodeError {@code invalid-json}, {@code not-an-object}
     */
    Map<String, Value> members() throws DecodeError {
        Map<String, Value> members = null;
        skipBlanks();
        if (peek() == '{') {
            members = outermost();
        } else {
            skipValue(0);
        }
        skipBlanks();
        require(at == document.length);
        if (members == null) {
            throw new DecodeError(ErrorCode.NOT_AN_OBJECT);
        }
        return members;
    }

    /** Return whether the object has several members with the same name. Call {@link #members} first. */
    boolean hasRepeats() {
        return hasRepeats;
    }

    private Map<String, Value> outermost() throws DecodeError {
        Map<String, Value> members = new LinkedHashMap<>();
        at++;
        skipBlanks();
        if (peek() == '}') {
            at++;
            return members;
        }
        do {
            skipBlanks();
            hasRepeats |= members.putIfAbsent(name(), value()) != null;
        } while (hasNext('}'));
        return members;
    }

    private String name() throws DecodeError {
        int start = at + 1;
        hasEscape = false;
        int end = skipName();
        return hasEscape
                ? new String(unescaped(document, start, end), StandardCharsets.UTF_8)
                : NAMES.get(document, start, end);
    }

    private Value value() throws DecodeError {
        int start = at;
        hasEscape = false;
        Kind kind = skipValue(1);
        return new Value(kind, document, start, at, hasEscape);
    }

    /** Skip a name, a colon, and the white space around it; return the index of the quote that ends the name. */
    private int skipName() throws DecodeError {
        require(peek() == '"');
        skipString();
        int end = at - 1;
        skipBlanks();
        require(peek() == ':');
        at++;
        skipBlanks();
        return end;
    }

    /** Skip the comma or the end bracket after an element or member; return whether another one follows. */
    private boolean hasNext(char end) throws DecodeError {
        skipBlanks();
        int next = peek();
        require(next == ',' || next == end);
        at++;
        return next == ',';
    }

    /**
     * Skip a value.
     *
     * @param level number of arrays and objects around the value
     */
    private Kind skipValue(int level) throws DecodeError {
        int first = peek();
        switch (first) {
            case '"' -> {
                skipString();
                return Kind.STRING;
            }
            case '{', '[' -> {
                require(level <= MAX_LEVELS);
                skipContainer(first == '{', level + 1);
                return Kind.CONTAINER;
            }
            case 't' -> {
                skipWord("true");
                return Kind.BOOLEAN;
            }
            case 'f' -> {
                skipWord("false");
                return Kind.BOOLEAN;
            }
            case 'n' -> {
                skipWord("null");
                return Kind.NULL;
            }
            default -> {
                return skipNumber();
            }
        }
    }

    private void skipContainer(boolean isObject, int level) throws DecodeError {
        char end = isObject ? '}' : ']';
        at++;
        skipBlanks();
        if (peek() == end) {
            at++;
            return;
        }
        do {
            skipBlanks();
            if (isObject) {
                skipName();
            }
            skipValue(level);
        } while (hasNext(end));
    }

    private void skipWord(String word) throws DecodeError {
        for (int index = 0; index < word.length(); index++) {
            require(peek() == word.charAt(index));
            at++;
        }
    }

    // --- Strings ----------------------------------------------------------------------------------------------------

    private void skipString() throws DecodeError {
        at = endOfPlain(at + 1);
        while (peek() != '"') {
            require(peek() == '\\');
            at++;
            skipEscape();
            at = endOfPlain(at);
        }
        at++;
    }

    /** Return the index of the next quote, backslash or control character in a string, or the end of the document. */
    private int endOfPlain(int start) {
        int next = start;
        for (; next + Long.BYTES <= document.length; next += Long.BYTES) {
            long eight = Text.eight(document, next);
            // The lowest bit that is set is exact; others may be set without a reason.
            long found = Text.matches(eight, '"') | Text.matches(eight, '\\') | Text.controls(eight);
            if (found != 0) {
                return next + Long.numberOfTrailingZeros(found) / Byte.SIZE;
            }
        }
        while (next < document.length && isPlain(document[next])) {
            next++;
        }
        return next;
    }

    private static boolean isPlain(byte octet) {
        return octet != '"' && octet != '\\' && (octet < 0 || octet >= ' ');
    }

    private void skipEscape() throws DecodeError {
        hasEscape = true;
        int letter = peek();
        require("\"\\/bfnrtu".indexOf(letter) >= 0);
        at++;
        if (letter != 'u') {
            return;
        }
        int unit = takeUnit();
        require(unit >= 0 && !Character.isLowSurrogate((char) unit));
        if (Character.isHighSurrogate((char) unit)) {
            require(peek() == '\\');
            at++;
            require(peek() == 'u');
            at++;
            int low = takeUnit();
            require(Character.isLowSurrogate((char) low));
        }
    }

    private int takeUnit() throws DecodeError {
        require(at + 4 <= document.length);
        int unit = unit(document, at);
        at += 4;
        return unit;
    }

    /** Return the value of four hexadecimal digits, or -1. */
    private static int unit(byte[] document, int start) {
        int value = 0;
        for (int index = start; index < start + 4; index++) {
            int digit = Text.hexadecimal(document[index]);
            if (digit < 0) {
                return -1;
            }
            value = value << 4 | digit;
        }
        return value;
    }

    /** Return the unescaped content of a valid string that has an escape, given by its start and end. */
    private static byte[] unescaped(byte[] document, int start, int end) {
        byte[] out = Arrays.copyOfRange(document, start, end);
        int from = Text.indexOf(out, '\\', 0);
        // Unescaping in index works, because an escape is never shorter than its character.
        int size = from;
        while (from < out.length) {
            if (out[from] != '\\') {
                out[size++] = out[from++];
            } else if (out[from + 1] != 'u') {
                out[size++] = escaped(out[from + 1]);
                from += 2;
            } else {
                char high = (char) unit(out, from + 2);
                boolean isPair = Character.isHighSurrogate(high);
                String character = isPair ? "" + high + (char) unit(out, from + 8) : String.valueOf(high);
                byte[] octets = Text.bytes(character);
                System.arraycopy(octets, 0, out, size, octets.length);
                size += octets.length;
                from += isPair ? 12 : 6;
            }
        }
        return Arrays.copyOf(out, size);
    }

    private static byte escaped(byte letter) {
        return switch (letter) {
            case 'b' -> '\b';
            case 'f' -> '\f';
            case 'n' -> '\n';
            case 'r' -> '\r';
            case 't' -> '\t';
            default -> letter;
        };
    }

    // --- Numbers ----------------------------------------------------------------------------------------------------

    private Kind skipNumber() throws DecodeError {
        int start = at;
        if (peek() == '-') {
            at++;
        }
        int digits = at;
        require(Text.isDigit(peek()));
        if (peek() == '0') {
            at++;
        } else {
            skipDigits();
        }
        digits = at - digits;
        boolean hasFraction = peek() == '.';
        if (hasFraction) {
            at++;
            require(Text.isDigit(peek()));
            skipDigits();
        }
        boolean hasExponent = (peek() | 0x20) == 'e';
        if (hasExponent) {
            skipExponent();
        }
        if (!hasFraction && !hasExponent) {
            require(at - start <= MAX_INTEGER_LENGTH);
            return Kind.INTEGER;
        }
        require(!hasExponent && digits <= MAX_DIGITS || isFinite(start));
        return Kind.FLOAT;
    }

    private void skipExponent() throws DecodeError {
        at++;
        if (peek() == '+' || peek() == '-') {
            at++;
        }
        require(Text.isDigit(peek()));
        skipDigits();
    }

    private void skipDigits() {
        int end = at;
        while (end < document.length && Text.isDigit(document[end])) {
            end++;
        }
        at = end;
    }

    private boolean isFinite(int start) {
        String number = new String(document, start, at - start, StandardCharsets.US_ASCII);
        return Double.isFinite(Double.parseDouble(number));
    }

    // ----------------------------------------------------------------------------------------------------------------

    private void skipBlanks() {
        int end = at;
        while (end < document.length && isBlank(document[end])) {
            end++;
        }
        at = end;
    }

    private static boolean isBlank(byte octet) {
        return octet == ' ' || octet == '\n' || octet == '\r' || octet == '\t';
    }

    /** Return the next byte; negative if it is not ASCII, and -1 at the end. */
    private int peek() {
        return at < document.length ? document[at] : -1;
    }

    private static void require(boolean isValid) throws DecodeError {
        if (!isValid) {
            throw new DecodeError(ErrorCode.INVALID_JSON);
        }
    }
}
