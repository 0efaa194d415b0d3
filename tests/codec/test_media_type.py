"""
Media types: syntax, the kind of data, and charsets.
"""

import encodings
import pkgutil
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from ce_nats.codec.media_type import DataKind, MediaType, parse
from tests.support.strategies import any_text, legal_text, media_types
from tests.support.tables import each

JSON, TEXT, BINARY = DataKind.JSON, DataKind.TEXT, DataKind.BINARY


@each(
    ("text", "kind"),
    [
        ("image/vnd.x+json", JSON),
        ("a/+JSON", JSON),
        ("application/cloudevents+json", JSON),
        ("TEXT/x-anything", TEXT),
        ("application/json+x", BINARY),
        ("application/xml-dtd", BINARY),
        ("application/text", BINARY),
        ("textual/plain", BINARY),
        ("application/octet-stream; x=application/json", BINARY),
    ],
)
def test_kind_of_data(text: str, kind: DataKind) -> None:
    """The subtype json or a +json suffix is JSON with every type; text and XML are text; the rest is bytes."""
    parsed = parse(text)
    assert parsed is not None
    assert parsed.kind is kind


def test_kinds_are_named() -> None:
    assert [kind.value for kind in DataKind] == ["json", "text", "binary"]


@each(
    "text",
    ["", "/", "a/", "/a", "json", "a b/c", "a/b c", " a/b", "a/b ", "a/b/c", "a/b\n", "a/b,c/d", "a/b c;x", "ä/b", "*"],
)
def test_other_text_is_not_a_media_type(text: str) -> None:
    """A type and a subtype of tokens are required, with nothing around them."""
    if text == "a/b ":
        assert parse(text) is not None  # white space before what would be a parameter
    else:
        assert parse(text) is None


@each(
    ("parameters", "charset"),
    [
        ("", ""),
        ("; charset=UTF-8", "utf-8"),
        (';charset="Utf-8"', "utf-8"),
        (";CHARSET=iso-8859-1;x=y", "iso-8859-1"),
        ('; x="; charset=a"; charset=b', "b"),
        ("; xcharset=a", ""),
        ("; charset=a; charset=b", "a"),
        (";;; charset=a", "a"),
        ("; charset = a ", "a"),
        ("; charset=\ta\t", "a"),
        ("; charset=", ""),
        ("; charset=;x=y", ""),
        ("; x=; charset=a", "a"),
        ("; charset", ""),
    ],
)
def test_charset(parameters: str, charset: str) -> None:
    """The first charset parameter is used, in any case, quoted or not, but not inside of another quoted value."""
    parsed = parse("text/plain" + parameters)
    assert parsed is not None
    assert parsed.charset == charset


@given(media_types, legal_text())
def test_parameters_and_case_do_not_change_the_kind(text: str, parameters: str) -> None:
    bare, more = parse(text.partition(";")[0]), parse(f"{text};{parameters}")
    assert bare is not None
    assert more is not None
    assert bare[:2] == more[:2] == parse(text.partition(";")[0].swapcase())[:2]


@given(any_text)
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    """A charset has a codec or None."""
    for candidate in (text, f"a/b;{text}", f"text/plain; charset={text}", f'text/plain; charset="{text}'):
        parsed = parse(candidate)
        if parsed is not None:
            assert parsed.essence == parsed.essence.lower()
            assert parsed.codec() is None or "".encode(parsed.codec()) is not None


@each("charset", ["utf-8", "UTF8", "us-ascii", ""])
def test_charsets_of_json(charset: str) -> None:
    """UTF-8 by all names, and its subset ASCII."""
    assert parse(f"application/json; charset={charset}").is_utf8


@each("charset", ["utf-16", "iso-8859-1", "utf_8", "utf-8-sig", "x"])
def test_other_charsets_are_not_utf8(charset: str) -> None:
    found = parse(f"application/json; charset={charset}")
    assert not found.is_utf8
    assert not found.has_all_text


def test_ascii_has_not_all_text_of_utf8() -> None:
    for charset, expected in (("utf-8", True), ("UTF8", True), ("", True), ("us-ascii", False)):
        assert parse(f"text/plain; charset={charset}").has_all_text is expected


@each("name", sorted({module.name for module in pkgutil.iter_modules(encodings.__path__)}))
def test_codecs_of_python(name: str) -> None:
    """A codec is a charset if it encodes text as bytes; looking one up never raises."""
    codec = parse(f"text/plain; charset={name}").codec()
    if codec is not None:
        assert "abc".encode(codec).decode(codec) == "abc"


@each("charset", ["bz2", "uu", "quopri", "raw-unicode-escape", "hex", "mbcs", "x"])
def test_other_codecs_are_not_charsets(charset: str) -> None:
    """Python's codecs for other purposes, one of which decompresses."""
    assert parse(f"text/plain; charset={charset}").codec() is None


@given(st.text("abc-_./\\: \0", max_size=2000))
def test_unknown_charsets_have_no_codec(charset: str) -> None:
    """Paths among them."""
    assert MediaType("text/plain", TEXT, f"no{charset}").codec() is None


@each(
    ("charset", "codec"),
    [
        ("iso_8859-1:1987", "iso8859-1"),
        ("iso_-8859--1", "iso8859-1"),
        ("ANSI_X3.4-1968", "ascii"),
        ("", "utf-8"),
        ("charmap", "charmap"),
        *((name, name) for name in ("cp1006", "cp720", "cp737", "cp856", "cp874", "cp875", "palmos")),
        *((name, name) for name in ("koi8-t", "koi8-u", "mac-arabic", "mac-croatian", "mac-farsi", "mac-romanian")),
        ("iso8859_1", "iso8859-1"),
        ("utf-8-sig", "utf-8-sig"),
        ("utf8" + "_" * 36, "utf-8"),
        ("utf8" + "_" * 37, None),
        ("utf 8", None),
        ("utf-8,", None),
        ("utf8\u0130", None),
        ("aliases", None),
        ("-", None),
    ],
)
def test_charset_names_have_at_most_40_legal_characters(charset: str, codec: str | None) -> None:
    assert parse(f"text/plain; charset={charset}").codec() == codec


def test_unknown_charsets_are_not_kept_in_memory() -> None:
    """codecs.lookup() caches every name that it is called with."""
    names = [*(f"{number}{'x' * 100_000}" for number in range(50)), *map(str, range(10**6, 10**6 + 2000))]

    def decode_all() -> None:
        for name in names:
            for separator in ("; charset=", ";a=b;charset="):
                assert parse(f"text/plain{separator}{name}").codec() is None

    decode_all()
    tracemalloc.start()
    try:
        decode_all()
        names[:] = [f"y{name}" for name in names]
        before = tracemalloc.get_traced_memory()[0]
        decode_all()
        assert tracemalloc.get_traced_memory()[0] - before < 1_000_000
    finally:
        tracemalloc.stop()
