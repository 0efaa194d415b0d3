package io.cenats.spark;

import java.time.LocalDate;
import java.time.Month;
import java.time.Year;

/**
 * Parses RFC 3339 text; mirrors {@code ce_nats/codec/timestamp.py}.
 *
 * <p>CloudEvents "Timestamp" (RFC 3339 5.6 and 5.7). A TIMESTAMP has microseconds and no offset: further digits are
 * truncated, and the leap second 23:59:60 becomes 23:59:59.999999. Its range is the years 1 to 9999 in UTC. A time
 * that is valid with its offset, but outside this range in UTC, has no TIMESTAMP; that is not an error.
 */
final class Timestamp {
    /** Result for an instant outside the range of a TIMESTAMP. */
    static final long NONE = Long.MIN_VALUE;

    private static final long SECOND = 1_000_000;
    private static final long MINUTE = 60 * SECOND;
    private static final long DAY = 24 * 60 * MINUTE;
    private static final long FIRST = -62_135_596_800L * SECOND; // 0001-01-01T00:00:00Z
    private static final long LAST = 253_402_300_800L * SECOND - 1; // 9999-12-31T23:59:59.999999Z
    private static final String LAYOUT = "0000-00-00T00:00:00";
    private static final int OFFSET_SIZE = "+00:00".length();
    private static final int MICROSECOND_DIGITS = 6;

    private Timestamp() {}

    /**
     * Return microseconds of Unix time, or {@link #NONE}.
     *
     * @throws DecodeError {@code invalid-timestamp}
     */
    static long parse(byte[] text) throws DecodeError {
        checkLayout(text);
        int year = number(text, 0, 4);
        int month = number(text, 5, 2);
        int day = number(text, 8, 2);
        int hour = number(text, 11, 2);
        int minute = number(text, 14, 2);
        int second = number(text, 17, 2);
        boolean isLeapSecond = second == 60;
        require(year >= 1 && month >= 1 && month <= 12 && day >= 1);
        require(day <= Month.of(month).length(Year.isLeap(year)));
        require(hour <= 23 && minute <= 59 && second <= 60);
        long ofSecond = isLeapSecond ? SECOND - 1 : fraction(text);
        long ofDay = (hour * 60 + minute) * MINUTE + (isLeapSecond ? 59 : second) * SECOND + ofSecond;
        long micros = LocalDate.of(year, month, day).toEpochDay() * DAY + ofDay - offset(text);
        boolean isInRange = micros >= FIRST && micros <= LAST;
        require(!isLeapSecond || isInRange && endsAMonth(micros));
        return isInRange ? micros : NONE;
    }

    /** Return a valid text with {@code T} and {@code Z} in upper case, otherwise unchanged. */
    static byte[] canonical(byte[] text) {
        int t = LAYOUT.indexOf('T');
        int last = text.length - 1;
        if (text[t] != 't' && text[last] != 'z') {
            return text;
        }
        byte[] copy = text.clone();
        copy[t] = 'T';
        copy[last] = copy[last] == 'z' ? (byte) 'Z' : copy[last];
        return copy;
    }

    /** RFC 3339 5.6: date-time = full-date "T" full-time, with the note that "T" and "Z" may be lower case. */
    private static void checkLayout(byte[] text) throws DecodeError {
        require(text.length > LAYOUT.length());
        for (int at = 0; at < LAYOUT.length(); at++) {
            char wanted = LAYOUT.charAt(at);
            require(wanted == '0' ? Text.isDigit(text[at]) : text[at] == wanted || wanted == 'T' && text[at] == 't');
        }
        int at = LAYOUT.length();
        if (text[at] == '.') {
            at = endOfDigits(text, at + 1);
            require(at > LAYOUT.length() + 1);
        }
        require(isUtc(text) ? at == text.length - 1 : at == text.length - OFFSET_SIZE && isOffset(text, at));
    }

    private static boolean isUtc(byte[] text) {
        return (text[text.length - 1] | 0x20) == 'z';
    }

    private static boolean isOffset(byte[] text, int at) {
        boolean hasForm = (text[at] == '+' || text[at] == '-') && text[at + 3] == ':';
        boolean hasDigits = isTwoDigits(text, at + 1) && isTwoDigits(text, at + 4);
        return hasForm && hasDigits && number(text, at + 1, 2) <= 23 && number(text, at + 4, 2) <= 59;
    }

    private static boolean isTwoDigits(byte[] text, int at) {
        return Text.isDigit(text[at]) && Text.isDigit(text[at + 1]);
    }

    private static int endOfDigits(byte[] text, int start) {
        int at = start;
        while (at < text.length && Text.isDigit(text[at])) {
            at++;
        }
        return at;
    }

    private static int number(byte[] text, int start, int digits) {
        int value = 0;
        for (int at = start; at < start + digits; at++) {
            value = value * 10 + text[at] - '0';
        }
        return value;
    }

    /** Return the fraction of a second in microseconds; further digits are truncated. */
    private static long fraction(byte[] text) {
        if (text[LAYOUT.length()] != '.') {
            return 0;
        }
        long value = 0;
        int start = LAYOUT.length() + 1;
        int end = endOfDigits(text, start);
        for (int at = start; at < start + MICROSECOND_DIGITS; at++) {
            value = value * 10 + (at < end ? text[at] - '0' : 0);
        }
        return value;
    }

    /** Return the microseconds that the local time is ahead of UTC. */
    private static long offset(byte[] text) {
        if (isUtc(text)) {
            return 0;
        }
        int at = text.length - OFFSET_SIZE;
        long minutes = number(text, at + 1, 2) * 60L + number(text, at + 4, 2);
        return (text[at] == '-' ? -minutes : minutes) * MINUTE;
    }

    /** RFC 3339 5.7: second 60 is valid only as a leap second, which is the last second of a month in UTC. */
    private static boolean endsAMonth(long micros) {
        long next = micros + 1;
        return next % DAY == 0 && LocalDate.ofEpochDay(Math.floorDiv(next, DAY)).getDayOfMonth() == 1;
    }

    private static void require(boolean isValid) throws DecodeError {
        if (!isValid) {
            throw new DecodeError(ErrorCode.INVALID_TIMESTAMP);
        }
    }
}
