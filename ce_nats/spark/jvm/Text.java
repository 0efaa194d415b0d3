package io.cenats.spark;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

import org.apache.spark.unsafe.types.UTF8String;

/** Functions for text as UTF-8 in a byte array, as Spark stores it. Arguments are never modified. */
final class Text {
    private static final VarHandle EIGHT =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    private static final long ONES = 0x0101010101010101L;
    private static final long NON_ASCII = 0x80 * ONES;
    /** Offset of the first byte of an array in a UTF8String. */
    private static final long BASE = UTF8String.fromBytes(new byte[0]).getBaseOffset();

    private Text() {}

    /** Return eight bytes, the first one lowest. */
    static long eight(byte[] array, int at) {
        return (long) EIGHT.get(array, at);
    }

    /** Return a number that is not 0 if one of eight bytes has a value, up to 0x7F. */
    static long matches(long eight, int octet) {
        long difference = eight ^ octet * ONES;
        return (difference - ONES) & ~difference & NON_ASCII;
    }

    /** Return a number that is not 0 if one of eight bytes is a control character up to 0x1F. */
    static long controls(long eight) {
        return (eight - ' ' * ONES) & ~eight & NON_ASCII;
    }

    /** Return the index in its array of the first byte of a text whose base is an array of bytes. */
    static int start(UTF8String text) {
        return (int) (text.getBaseOffset() - BASE);
    }

    /** Return a copy of the bytes of a text, as {@code getBytes()} does in more time. */
    static byte[] copy(UTF8String text) {
        if (text.getBaseObject() instanceof byte[] array) {
            int start = start(text);
            return Arrays.copyOfRange(array, start, start + text.numBytes());
        }
        return text.getBytes();
    }

    /** Return whether a text has only printable ASCII characters, without the quotes and percent signs of headers. */
    static boolean isPlain(byte[] text) {
        int at = 0;
        for (; at + Long.BYTES <= text.length; at += Long.BYTES) {
            long eight = eight(text, at);
            if ((eight & NON_ASCII | controls(eight) | matches(eight, 0x7F) | matches(eight, '"') | matches(eight, '%'))
                    != 0) {
                return false;
            }
        }
        for (; at < text.length; at++) {
            if (text[at] < ' ' || text[at] == 0x7F || text[at] == '"' || text[at] == '%') {
                return false;
            }
        }
        return true;
    }

    /** Return whether bytes are strict UTF-8 (RFC 3629): no overlong forms, surrogates, or values above U+10FFFF. */
    static boolean isUtf8(byte[] text) {
        int at = 0;
        while (at < text.length) {
            at = endOfAscii(text, at);
            if (at == text.length) {
                return true;
            }
            int size = sizeOfCharacter(text, at);
            if (size == 0) {
                return false;
            }
            at += size;
        }
        return true;
    }

    private static int endOfAscii(byte[] text, int start) {
        int at = start;
        while (at + Long.BYTES <= text.length && (eight(text, at) & NON_ASCII) == 0) {
            at += Long.BYTES;
        }
        while (at < text.length && text[at] >= 0) {
            at++;
        }
        return at;
    }

    /** Return the size of the non-ASCII character that begins at an index in bytes, or 0 if it is not well-formed. */
    private static int sizeOfCharacter(byte[] text, int at) {
        int first = text[at] & 0xFF;
        int second = at + 1 < text.length ? text[at + 1] & 0xFF : 0;
        if (first >= 0xC2 && first <= 0xDF) {
            return isContinuation(second) ? 2 : 0;
        }
        if (first >= 0xE0 && first <= 0xEF) {
            int lowest = first == 0xE0 ? 0xA0 : 0x80;
            int highest = first == 0xED ? 0x9F : 0xBF;
            return second >= lowest && second <= highest && hasContinuation(text, at + 2) ? 3 : 0;
        }
        if (first >= 0xF0 && first <= 0xF4) {
            int lowest = first == 0xF0 ? 0x90 : 0x80;
            int highest = first == 0xF4 ? 0x8F : 0xBF;
            boolean isWhole = hasContinuation(text, at + 2) && hasContinuation(text, at + 3);
            return second >= lowest && second <= highest && isWhole ? 4 : 0;
        }
        return 0;
    }

    private static boolean hasContinuation(byte[] text, int at) {
        return at < text.length && isContinuation(text[at] & 0xFF);
    }

    private static boolean isContinuation(int octet) {
        return (octet & 0xC0) == 0x80;
    }

    /** Return the text without leading and trailing spaces and tabs. */
    static byte[] strip(byte[] text) {
        int start = 0;
        int end = text.length;
        while (start < end && isBlank(text[start])) {
            start++;
        }
        while (start < end && isBlank(text[end - 1])) {
            end--;
        }
        return end - start == text.length ? text : Arrays.copyOfRange(text, start, end);
    }

    private static boolean isBlank(byte octet) {
        return octet == ' ' || octet == '\t';
    }

    /** Return an ASCII letter in lower case, another byte unchanged (some non-ASCII letters have ASCII lower case). */
    static int lowerCase(int octet) {
        return octet >= 'A' && octet <= 'Z' ? octet + ('a' - 'A') : octet;
    }

    /** Return whether a text, in any case, starts with a prefix, which is ASCII in lower case. */
    static boolean startsWith(byte[] text, byte[] prefix) {
        if (text.length < prefix.length) {
            return false;
        }
        for (int at = 0; at < prefix.length; at++) {
            if (lowerCase(text[at]) != prefix[at]) {
                return false;
            }
        }
        return true;
    }

    /** Return whether a text, in any case, equals another, which is ASCII in lower case. */
    static boolean equalsIgnoringCase(byte[] text, byte[] other) {
        return text.length == other.length && startsWith(text, other);
    }

    /** Return the text from an index on, with ASCII letters in lower case. */
    static String lowerCased(byte[] text, int start) {
        for (int at = start; at < text.length; at++) {
            if (lowerCase(text[at]) != text[at]) {
                return lowerCased(lowerCasedCopy(text), start);
            }
        }
        return new String(text, start, text.length - start, StandardCharsets.UTF_8);
    }

    private static byte[] lowerCasedCopy(byte[] text) {
        byte[] copy = text.clone();
        for (int at = 0; at < copy.length; at++) {
            copy[at] = (byte) lowerCase(copy[at]);
        }
        return copy;
    }

    static int indexOf(byte[] text, int octet, int start) {
        for (int at = start; at < text.length; at++) {
            if (text[at] == octet) {
                return at;
            }
        }
        return -1;
    }

    static boolean isDigit(int octet) {
        return octet >= '0' && octet <= '9';
    }

    static boolean isLetter(int octet) {
        int lower = octet | 0x20;
        return lower >= 'a' && lower <= 'z';
    }

    /** Return the value of a hexadecimal digit, or -1. */
    static int hexadecimal(int octet) {
        if (isDigit(octet)) {
            return octet - '0';
        }
        int lower = octet | 0x20;
        return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
