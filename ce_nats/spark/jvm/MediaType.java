package io.cenats.spark;

import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A parsed datacontenttype; mirrors {@code ce_nats/codec/media_type.py}.
 *
 * <p>RFC 2046 and RFC 2045 5.1; JSON event format 3.1.1 defines which types are JSON.
 *
 * @param isJson true if data of this type is JSON
 * @param charset the charset parameter in lower case, empty if there is none
 */
record MediaType(boolean isJson, String charset) {
    private static final Set<String> UTF_8 = Set.of("", "utf-8", "utf8", "us-ascii");

    // Quantifiers are possessive: with others, Java needs stack space for each repetition that it may backtrack to.
    private static final String TOKEN = "[!#$%&'*+.^_`{|}~0-9A-Za-z-]++";
    private static final Pattern SYNTAX =
            Pattern.compile("(" + TOKEN + ")/(" + TOKEN + ")[ \t]*+(;.*+)?+", Pattern.DOTALL);
    private static final Pattern PARAMETER = Pattern.compile(
            ";[ \t]*+(" + TOKEN + ")[ \t]*+=[ \t]*+(?:\"((?:[^\"\\\\]++|\\\\.)*+)\"|([^;\"]*+))", Pattern.DOTALL);

    private static final ParseCache<MediaType> KNOWN = new ParseCache<>(MediaType::parsed);

    /** Parse a media type; return null if the text is not one. */
    static MediaType parse(byte[] text) {
        return KNOWN.get(text);
    }

    private static MediaType parsed(byte[] text) {
        Matcher matcher = SYNTAX.matcher(new String(text, StandardCharsets.UTF_8));
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
                String value = matcher.group(2) != null ? matcher.group(2) : matcher.group(3);
                return value.replaceAll("^[ \t]++|[ \t]++$", "").toLowerCase(Locale.ROOT);
            }
        }
        return "";
    }

    /** Return whether text of this type is UTF-8 or its subset ASCII, as JSON must be. */
    boolean isUtf8() {
        return UTF_8.contains(charset);
    }
}
