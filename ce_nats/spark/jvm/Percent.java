package io.cenats.spark;

import static io.cenats.spark.DecodeError.require;

import java.util.Arrays;

/**
 * Decodes quoted strings and percent-encoding; mirrors {@code ce_nats/codec/percent.py}.
 *
 * <p>NATS protocol binding, section 3.1.3.2 "NATS Header Values".
 */
final class Percent {
    private Percent() {}

    /**
     * Remove quotes of quoted strings, then decode percent escapes once. The value must be UTF-8 before that: its bytes
     * do not form a character together with those of escapes.
     *
     * @param value header value, without outer white space
     * @throws DecodeError {@code unterminated-quote}, {@code invalid-percent-escape}, {@code invalid-utf8}
     */
    static byte[] decode(byte[] value) throws DecodeError {
        if (Text.isPlain(value)) {
            return value;
        }
        byte[] text = Text.indexOf(value, '"', 0) < 0 ? value : unquote(value);
        byte[] decoded = Text.indexOf(text, '%', 0) < 0 ? text : unescape(text);
        require(Text.isUtf8(value) && (decoded == text || Text.isUtf8(decoded)), ErrorCode.INVALID_UTF8);
        return decoded;
    }

    /** Replace quoted strings by their content (RFC 7230 3.2.6); a backslash outside quotes has no meaning. */
    private static byte[] unquote(byte[] value) throws DecodeError {
        byte[] out = new byte[value.length];
        int size = 0;
        boolean isInside = false;
        for (int at = 0; at < value.length; at++) {
            if (value[at] == '"') {
                isInside = !isInside;
                continue;
            }
            if (isInside && value[at] == '\\' && ++at == value.length) {
                break;
            }
            out[size++] = value[at];
        }
        if (isInside) {
            throw new DecodeError(ErrorCode.UNTERMINATED_QUOTE);
        }
        return Arrays.copyOf(out, size);
    }

    /** Decode percent escapes (RFC 3986 2.1: pct-encoded = "%" HEXDIG HEXDIG). */
    private static byte[] unescape(byte[] text) throws DecodeError {
        byte[] out = new byte[text.length];
        int size = 0;
        for (int at = 0; at < text.length; at++) {
            if (text[at] != '%') {
                out[size++] = text[at];
                continue;
            }
            int high = at + 2 < text.length ? Text.hexadecimal(text[at + 1]) : -1;
            int low = high >= 0 ? Text.hexadecimal(text[at + 2]) : -1;
            if (low < 0) {
                throw new DecodeError(ErrorCode.INVALID_PERCENT_ESCAPE);
            }
            out[size++] = (byte) (high << 4 | low);
            at += 2;
        }
        return Arrays.copyOf(out, size);
    }
}
