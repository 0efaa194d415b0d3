package io.cenats.spark;

import java.util.Arrays;
import java.util.function.Function;

/**
 * Values that are parsed from short texts of which senders use few, such as header names and media types.
 *
 * <p>Its size is bounded: each text has one index, at which it replaces another text. Threads need no lock, because
 * entries are immutable; a lost entry is parsed again.
 *
 * @param <T> type of the values
 */
final class ParseCache<T> {
    private static final int SIZE = 1 << 10;
    private static final int MAX_LENGTH = 100;

    private record Entry(byte[] text, Object value) {}

    private final Function<byte[], T> parse;
    private final Entry[] entries = new Entry[SIZE];

    /** @param parse returns the value of a text; must always return the same one */
    ParseCache(Function<byte[], T> parse) {
        this.parse = parse;
    }

    T get(byte[] text) {
        return get(text, 0, text.length);
    }

    /** Return the value of a part of an array. */
    T get(byte[] array, int start, int end) {
        int index = hash(array, start, end);
        Entry known = entries[index];
        if (known != null && Arrays.equals(known.text, 0, known.text.length, array, start, end)) {
            @SuppressWarnings("unchecked") // only this method adds values
            T value = (T) known.value;
            return value;
        }
        byte[] text = Arrays.copyOfRange(array, start, end);
        T value = parse.apply(text);
        if (text.length <= MAX_LENGTH) {
            entries[index] = new Entry(text, value);
        }
        return value;
    }

    /** Return an index, from the length and at most 16 bytes: enough for the few texts that repeat. */
    private static int hash(byte[] array, int start, int end) {
        long mixed = end - start;
        if (mixed >= Long.BYTES) {
            mixed += Text.eight(array, start) + 31 * Text.eight(array, end - Long.BYTES);
        } else {
            for (int at = start; at < end; at++) {
                mixed = 31 * mixed + array[at];
            }
        }
        mixed *= 0x9E3779B97F4A7C15L; // the golden ratio, of which the upper bits depend on all bits
        return (int) (mixed >>> Long.SIZE - 10);
    }
}
