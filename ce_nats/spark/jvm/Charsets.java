package io.cenats.spark;

import static io.cenats.spark.DecodeError.require;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Pattern;

/**
 * Encodes text in the charset of a media type; mirrors {@code codec()} of {@code ce_nats/codec/media_type.py}.
 *
 * <p>Supported are the charsets of Python that Java encodes to the same bytes, by all their names in Python.
 * East Asian charsets and EBCDIC differ in some characters: they are {@code unsupported-charset}.
 */
final class Charsets {
    private static final String BYTE_ORDER_MARK = "\uFEFF";

    /** Lines with Java's name of a charset, a plus if its text starts with a byte order mark, and Python's names. */
    private static final String TABLE = """
            US-ASCII 646 ansi_x3.4_1968 ansi_x3.4_1986 ansi_x3_4_1968 ascii cp367 csascii ibm367 iso646_us
            US-ASCII iso_646.irv_1991 iso_ir_6 us us_ascii
            ISO-8859-1 charmap
            windows-1250 1250 cp1250 windows_1250
            windows-1251 1251 cp1251 windows_1251
            windows-1252 1252 cp1252 windows_1252
            windows-1253 1253 cp1253 windows_1253
            windows-1254 1254 cp1254 windows_1254
            windows-1255 1255 cp1255 windows_1255
            windows-1256 1256 cp1256 windows_1256
            windows-1257 1257 cp1257 windows_1257
            windows-1258 1258 cp1258 windows_1258
            IBM437 437 cp437 cspc8codepage437 ibm437
            x-IBM737 cp737
            IBM775 775 cp775 cspc775baltic ibm775
            IBM850 850 cp850 cspc850multilingual ibm850
            IBM852 852 cp852 cspcp852 ibm852
            IBM855 855 cp855 csibm855 ibm855
            IBM857 857 cp857 csibm857 ibm857
            IBM00858 858 cp858 csibm858 ibm858
            IBM860 860 cp860 csibm860 ibm860
            IBM861 861 cp861 cp_is csibm861 ibm861
            IBM862 862 cp862 cspc862latinhebrew ibm862
            IBM863 863 cp863 csibm863 ibm863
            IBM864 864 cp864 csibm864 ibm864
            IBM865 865 cp865 csibm865 ibm865
            IBM866 866 cp866 csibm866 ibm866
            IBM869 869 cp869 cp_gr csibm869 ibm869
            x-windows-874 cp874
            GB2312 chinese csiso58gb231280 euc_cn euccn eucgb2312_cn gb2312 gb2312_1980 gb2312_80 iso_ir_58
            GB2312 x_mac_simp_chinese
            x-iso-8859-11 iso8859_11 iso_8859_11 iso_8859_11_2001 thai
            ISO-8859-13 iso8859_13 iso_8859_13 l7 latin7
            ISO-8859-15 iso8859_15 iso_8859_15 l9 latin9
            ISO-8859-16 iso8859_16 iso_8859_16 iso_8859_16_2001 iso_ir_226 l10 latin10
            ISO-8859-2 csisolatin2 iso8859_2 iso_8859_2 iso_8859_2_1987 iso_ir_101 l2 latin2
            ISO-8859-3 csisolatin3 iso8859_3 iso_8859_3 iso_8859_3_1988 iso_ir_109 l3 latin3
            ISO-8859-4 csisolatin4 iso8859_4 iso_8859_4 iso_8859_4_1988 iso_ir_110 l4 latin4
            ISO-8859-5 csisolatincyrillic cyrillic iso8859_5 iso_8859_5 iso_8859_5_1988 iso_ir_144
            ISO-8859-6 arabic asmo_708 csisolatinarabic ecma_114 iso8859_6 iso_8859_6 iso_8859_6_1987 iso_ir_127
            ISO-8859-7 csisolatingreek ecma_118 elot_928 greek greek8 iso8859_7 iso_8859_7 iso_8859_7_1987
            ISO-8859-7 iso_ir_126
            ISO-8859-8 csisolatinhebrew hebrew iso8859_8 iso_8859_8 iso_8859_8_1988 iso_ir_138
            ISO-8859-9 csisolatin5 iso8859_9 iso_8859_9 iso_8859_9_1989 iso_ir_148 l5 latin5
            x-Johab cp1361 johab ms1361
            KOI8-R cskoi8r koi8_r
            KOI8-U koi8_u
            ISO-8859-1 8859 cp819 csisolatin1 ibm819 iso8859 iso8859_1 iso_8859_1 iso_8859_1_1987 iso_ir_100 l1
            ISO-8859-1 latin latin1 latin_1
            x-MacCentralEurope mac_centeuro mac_latin2 maccentraleurope maclatin2
            x-MacRoman mac_roman macintosh macroman
            UTF-16LE+ u16 utf16 utf_16
            UTF-16BE unicodebigunmarked utf_16_be utf_16be
            UTF-16LE unicodelittleunmarked utf_16_le utf_16le
            UTF-32LE+ u32 utf32 utf_32
            UTF-32BE utf_32_be utf_32be
            UTF-32LE utf_32_le utf_32le
            UTF-8 cp65001 u8 utf utf8 utf8_ucs2 utf8_ucs4 utf_8
            UTF-8+ utf_8_sig
            """;

    private static final Map<String, String> NAMES = names();

    /** RFC 2978 2.3: names of charsets have at most 40 characters. */
    private static final Pattern LEGAL = Pattern.compile("[a-z0-9._:-]{1,40}");

    private Charsets() {}

    /**
     * Encode a text.
     *
     * @param text valid UTF-8
     * @param name the charset in lower case, empty for UTF-8
     * @throws DecodeError {@code unsupported-charset}; {@code invalid-data} for a character outside the charset
     */
    static byte[] encode(byte[] text, String name) throws DecodeError {
        if (name.isEmpty()) {
            return text;
        }
        String found = LEGAL.matcher(name).matches() ? NAMES.get(normalised(name)) : null;
        require(found != null, ErrorCode.UNSUPPORTED_CHARSET);
        boolean isMarked = found.endsWith("+");
        String javaName = isMarked ? found.substring(0, found.length() - 1) : found;
        // A Java runtime without the module jdk.charsets has fewer charsets.
        require(Charset.isSupported(javaName), ErrorCode.UNSUPPORTED_CHARSET);
        String characters = (isMarked ? BYTE_ORDER_MARK : "") + new String(text, StandardCharsets.UTF_8);
        try {
            // A new encoder throws for characters that it cannot encode, instead of replacing them.
            ByteBuffer octets = Charset.forName(javaName).newEncoder().encode(CharBuffer.wrap(characters));
            return Arrays.copyOf(octets.array(), octets.limit());
        } catch (CharacterCodingException error) {
            throw new DecodeError(ErrorCode.INVALID_DATA);
        }
    }

    /** Return a name in the form that is compared: {@code iso_8859_1_1987} for {@code iso_8859-1:1987}. */
    private static String normalised(String name) {
        return name.replaceAll("[^a-z0-9]+", " ").strip().replace(' ', '_');
    }

    private static Map<String, String> names() {
        Map<String, String> names = new HashMap<>();
        for (String line : TABLE.split("\n")) {
            String[] words = line.split(" ");
            for (int index = 1; index < words.length; index++) {
                names.put(normalised(words[index]), words[0]);
            }
        }
        return names;
    }
}
