"""
Percent-encoding of header values: round trips of any text, and invalid values.

tests/test_fixtures.py runs the vectors of spec-fixtures/percent-encoding.json.
"""

import re
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from ce_nats import DecodeError, EncodeError
from ce_nats.codec.percent import closing_quote, decode, encode, is_encoded
from tests.support.strategies import any_text, attempt, legal_text, refused
from tests.support.tables import each

MUST_ENCODE = {" ", '"', "%"}


@given(legal_text())
def test_round_trip(text: str) -> None:
    """With our decoder and with urllib."""
    assert decode(encode(text)) == text
    assert unquote(encode(text), errors="strict") == text


@given(any_text)
def test_any_text_round_trips_or_is_rejected(text: str) -> None:
    """Only unpaired surrogates are rejected; a surrogate pair is one character."""
    try:
        text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        refused(EncodeError, "invalid-character", encode, text)
    else:
        joined = text.encode("utf-16", "surrogatepass").decode("utf-16")
        assert decode(encode(text)) == joined


@given(legal_text())
def test_encoding_is_minimal(text: str) -> None:
    """Only the characters that have to be escaped, with upper-case hex digits."""
    expected = "".join(
        "".join(f"%{byte:02X}" for byte in one.encode()) if one in MUST_ENCODE or not "!" <= one <= "~" else one
        for one in text
    )
    assert encode(text) == expected


def test_first_and_last_characters_of_each_range() -> None:
    """Of printable ASCII, of the characters before and after it, and of those that UTF-8 encodes with 1 to 4 bytes."""
    literal = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")
    assert encode(f" {literal}") == f"%20{literal}"
    assert encode("\0\x1f\x7f\x80\u07ff\u0800\U0010ffff") == "%00%1F%7F%C2%80%DF%BF%E0%A0%80%F4%8F%BF%BF"


@given(legal_text())
def test_unnecessary_escapes_are_decoded(text: str) -> None:
    """A sender may escape every byte, with hex digits in either case."""
    everything = "".join(f"%{byte:02x}" for byte in text.encode())
    assert decode(everything) == decode(everything.upper()) == text


@given(legal_text())
def test_quoted_strings_are_decoded(text: str) -> None:
    """Quotes and quoted pairs are removed before percent-decoding."""
    escaped = encode(text)
    assert decode('"' + escaped.replace("\\", "\\\\") + '"') == text
    assert decode('"' + "".join("\\" + one for one in escaped) + '"') == text
    quoted = text.replace("%", "%25").replace("\\", "\\\\").replace('"', '\\"')
    assert decode(f'"{quoted}"') == text


@given(any_text)
def test_any_value_is_decoded_or_rejected(value: str) -> None:
    """With one of three codes."""
    text, error = attempt(DecodeError, decode, value)
    if error is None:
        text.encode()
    else:
        assert error.code in {"unterminated-quote", "invalid-percent-escape", "invalid-utf8"}


@given(st.binary(max_size=12))
def test_utf8_is_strict(octets: bytes) -> None:
    """Escaped bytes are accepted if Python's strict decoder accepts them."""
    value = "".join(f"%{octet:02X}" for octet in octets)
    try:
        expected = octets.decode()
    except UnicodeDecodeError:
        refused(DecodeError, "invalid-utf8", decode, value)
    else:
        assert decode(value) == expected


@given(st.lists(any_text, min_size=2, max_size=3).map(lambda pieces: "%".join(pieces).replace('"', "")))
def test_malformed_escapes_and_invalid_utf8_have_different_codes(value: str) -> None:
    """A percent sign without two hex digits, at any position."""
    if re.search("%(?![0-9A-Fa-f]{2})", value):
        refused(DecodeError, "invalid-percent-escape", decode, value)
    elif any("\ud800" <= one <= "\udfff" for one in value):
        refused(DecodeError, "invalid-utf8", decode, value)


@each(
    ("value", "text"),
    [
        ("\\x41", "\\x41"),
        ("\\u00e9\\N{BULLET}\\101\\n", "\\u00e9\\N{BULLET}\\101\\n"),
        ("\\%41", "\\A"),
        ("\\\\%5C", "\\\\\\"),
        ("%5Cx41", "\\x41"),
        ("a+b", "a+b"),
        ("%2B%2b", "++"),
        ("%2525", "%25"),
        ("%C3ü%BC", None),
        ("%%34%31", None),
        ("%٤١", None),
        ("%4\u0661", None),
        ("% 41", None),
        ("%+1", None),
        ("%_1", None),
    ],
)
def test_backslashes_and_characters_like_hex_digits(value: str, text: str | None) -> None:
    """Outside of quotes a backslash is an ordinary character; digits of other scripts, signs and spaces are not hex."""
    if text is None:
        refused(DecodeError, "invalid-percent-escape" if "C3" not in value else "invalid-utf8", decode, value)
    else:
        assert decode(value) == text


@each("value", ['"', '"a', 'a"b', '"a\\"', '"\\', '"a"b"', '""" ', '"%22'])
def test_unterminated_quotes_are_rejected(value: str) -> None:
    """An escaped quote does not terminate a quoted string."""
    refused(DecodeError, "unterminated-quote", decode, value)


def test_several_quoted_strings_in_a_value() -> None:
    assert decode('a" b\\" "c"\\\\"%20\\') == 'a b" c\\ \\'
    assert decode('ab"cd ef"gh""') == "abcd efgh"
    assert decode('"%"41') == "A"


@each(
    ("text", "position", "closing"),
    [
        ('"a"', 0, 2),
        ('x"a" ', 1, 3),
        ('"a\\"b"', 0, 5),
        ('"a\\\\"', 0, 4),
        ("a", 0, -1),
        ("", 0, -1),
        ('a"', 0, -1),
        ('"a', 0, -1),
        ('"a\\"', 0, -1),
    ],
)
def test_closing_quote(text, position, closing):
    assert closing_quote(text, position) == closing


@each("value", ["", "abc", "%41b", "%c3%BC", "%ff", "a+b/c?d=e"])
def test_escapes_and_printable_characters_are_encoded(value):
    assert is_encoded(value) is True


@each("value", ["a b", "ü", '"', "%", "%4", "%4g", "a\n", "\x7f", "%\u0664\u0661"])
def test_other_characters_and_malformed_escapes_are_not_encoded(value):
    assert is_encoded(value) is False
