package io.cenats.spark;

import static io.cenats.spark.DecodeError.require;

import java.util.Arrays;

/**
 * Decodes a raw header block, as JetStream's API returns it; mirrors {@code ce_nats/wire/nats.py}.
 *
 * <p>ADR-4 "NATS Message Headers". Line ends are checked first, then the lines from first to last.
 */
final class HeaderBlock {
    private static final byte[] VERSION = Text.bytes("NATS/1.0");
    private static final int STATUS_SIZE = " 100".length();
    private static final int CRLF_SIZE = 2;

    private HeaderBlock() {}

    /**
     * Decode the headers in a block; an empty block is no headers.
     *
     * @throws DecodeError {@code invalid-header-block}, {@code invalid-header-version}, {@code invalid-header-name},
     *     {@code invalid-header-value}
     */
    static Headers decode(byte[] block) throws DecodeError {
        if (block.length == 0) {
            return Headers.NONE;
        }
        checkLineEnds(block);
        int start = endOfLine(block, 0);
        checkVersionLine(Arrays.copyOf(block, start));
        start += CRLF_SIZE;
        Headers headers = new Headers(8);
        // The empty line that ends the block is not a header.
        while (start < block.length - CRLF_SIZE) {
            int end = endOfLine(block, start);
            addLine(headers, Arrays.copyOfRange(block, start, end));
            start = end + CRLF_SIZE;
        }
        return headers;
    }

    /** Check that a block runs "up to and including the CR LF before the payload", and has no single CR or LF. */
    private static void checkLineEnds(byte[] block) throws DecodeError {
        int size = block.length;
        boolean isWhole = size >= 2 * CRLF_SIZE && isCrlf(block, size - 4) && isCrlf(block, size - 2);
        for (int at = 0; isWhole && at < size; at++) {
            isWhole = block[at] != '\n' && block[at] != '\r' || isCrlf(block, at++);
        }
        require(isWhole, ErrorCode.INVALID_HEADER_BLOCK);
    }

    private static boolean isCrlf(byte[] block, int at) {
        return at + 1 < block.length && block[at] == '\r' && block[at + 1] == '\n';
    }

    private static int endOfLine(byte[] block, int start) {
        return Text.indexOf(block, '\r', start);
    }

    /** Check for {@code NATS/1.0}, optionally followed by a space, a status of three digits, and a description. */
    private static void checkVersionLine(byte[] line) throws DecodeError {
        int end = VERSION.length + STATUS_SIZE;
        boolean isVersion = line.length >= VERSION.length
                && Arrays.equals(line, 0, VERSION.length, VERSION, 0, VERSION.length);
        boolean isAlone = line.length == VERSION.length;
        boolean hasStatus = line.length >= end && line[VERSION.length] == ' ' && isAllDigits(line, end);
        boolean hasDescription = hasStatus
                && (line.length == end || line[end] == ' ' || line[end] == '\t')
                && Text.indexOf(line, 0, end) < 0;
        require(isVersion && (isAlone || hasDescription), ErrorCode.INVALID_HEADER_VERSION);
    }

    private static boolean isAllDigits(byte[] line, int end) {
        boolean isAllDigits = true;
        for (int at = VERSION.length + 1; at < end; at++) {
            isAllDigits &= Text.isDigit(line[at]);
        }
        return isAllDigits;
    }

    /**
     * Parse and add a header.
     *
     * <p>"a field name followed by a colon, optional leading whitespace, the field value, and optional trailing
     * whitespace"
     */
    private static void addLine(Headers headers, byte[] line) throws DecodeError {
        int colon = Text.indexOf(line, ':', 0);
        boolean isFolded = line.length > 0 && (line[0] == ' ' || line[0] == '\t');
        require(!isFolded && colon >= 0, ErrorCode.INVALID_HEADER_BLOCK);
        boolean isName = colon > 0;
        for (int at = 0; at < colon; at++) {
            isName &= line[at] > ' ' && line[at] < 0x7F;
        }
        require(isName, ErrorCode.INVALID_HEADER_NAME);
        require(Text.indexOf(line, 0, colon) < 0, ErrorCode.INVALID_HEADER_VALUE);
        headers.add(
                Name.of(Arrays.copyOf(line, colon)),
                Text.strip(Arrays.copyOfRange(line, colon + 1, line.length)));
    }
}
