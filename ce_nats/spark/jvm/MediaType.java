package io.cenats.spark;

import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * What a datacontenttype says: {@code ce_nats/codec/media_type.py}.
 *
 * <p>RFC 2046 and RFC 2045 5.1; JSON event format 3.1.1 for what counts as JSON. The text itself is never rewritten.
 *
 * @param isJson whether data of this type is JSON
 * @param charset the charset parameter in lower case, empty where there is none
 */
record MediaType(boolean isJson, String charset) {
    private static final byte[] COMMON = Text.bytes("application/json");
    private static final MediaType JSON = new MediaType(true, "");
    private static final Set<String> UTF_8 = Set.of("", "utf-8", "utf8", "us-ascii");

    // Possessive wherever a pattern repeats: Java needs a stack for every repetition that it could take back.
    private static final String TOKEN = "[!#$%&'*+.^_`{|}~0-9A-Za-z-]++";
    private static final Pattern FORM =
            Pattern.compile("(" + TOKEN + ")/(" + TOKEN + ")[ \t]*+(;.*+)?+", Pattern.DOTALL);
    private static final Pattern PARAMETER = Pattern.compile(
            ";[ \t]*+(" + TOKEN + ")[ \t]*+=[ \t]*+(?:\"((?:[^\"\\\\]++|\\\\.)*+)\"|([^;\"]*+))", Pattern.DOTALL);

    /** Take a media type apart; null where the text is none. */
    static MediaType parse(byte[] text) {
        if (Text.equalsFolded(text, COMMON)) {
            return JSON;
        }
        Matcher matcher = FORM.matcher(new String(text, StandardCharsets.UTF_8));
        if (!matcher.matches()) {
            return null;
        }
        String subtype = matcher.group(2).toLowerCase(Locale.ROOT);
        boolean isJson = subtype.equals("json") || subtype.endsWith("+json");
        return new MediaType(isJson, matcher.group(3) == null ? "" : charset(matcher.group(3)));
    }

    private static String charset(String parameters) {
        Matcher matcher = PARAMETER.matcher(parameters);
        while (matcher.find()) {
            if (matcher.group(1).equalsIgnoreCase("charset")) {
                boolean isQuoted = matcher.group(2) != null && !matcher.group(2).isEmpty();
                String value = isQuoted ? matcher.group(2) : matcher.group(3) == null ? "" : matcher.group(3);
                return value.replaceAll("^[ \t]++|[ \t]++$", "").toLowerCase(Locale.ROOT);
            }
        }
        return "";
    }

    /** Whether text of this type is UTF-8 (ASCII is a part of it), as JSON has to be. */
    boolean isUtf8() {
        return UTF_8.contains(charset);
    }
}
