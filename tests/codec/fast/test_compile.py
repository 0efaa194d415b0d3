"""Compiled functions: their source text, when they are compiled, and the bounds of what is kept."""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from ce_nats import dedup_id, from_nats_message, to_nats_message
from ce_nats.codec._bounded_cache import MAX_STRING_LENGTH, MAX_TUPLES, BoundedCache, BoundedNamesCache
from ce_nats.codec.fast import _compile, encode_block, encode_headers
from ce_nats.codec.fast._compile import CALM, USES_BEFORE_COMPILE, CompiledConverters
from ce_nats.codec.fast._decode import valid_names
from ce_nats.codec.fast._values import NotHandled, escapes
from tests.support.fast_path import CONVERTERS, Text
from tests.support.strategies import binary_message
from tests.support.tables import each


def test_names_of_extensions_are_not_constants() -> None:
    """Python 3.12 and later keep constants that look like names until the process ends."""
    names = ("ce-specversion", "ce-id", "ce-source", "ce-type", "ce-extension")
    values = ("1.0", "1", "/s", "t", "x")
    convert = _compile.header_decoders[names]
    assert convert(values)["extension"] == "x"
    assert "'extension'" not in repr(convert.__code__.co_consts + convert.__code__.co_names)


def test_names_of_few_events_have_no_function() -> None:
    converters = CompiledConverters(len)
    for _ in range(USES_BEFORE_COMPILE - 1):
        with pytest.raises(NotHandled):
            converters["a", "b"]
    assert converters["a", "b"] == 2


SOURCES = {
    _compile.header_encoder_source: """\
def convert(attributes):
    v0, v1, v2, v3, v4 = attributes.values()
    if not (v0.__class__ is v1.__class__ is v2.__class__ is v3.__class__ is str):
        raise NotHandled
    if not (v1 == "1.0"):
        raise NotHandled
    if not (v0):
        raise NotHandled
    if not is_literal(f"{v0}"):
        v0, = escape_all((v0,))
    v4 = to_builtins(v4) if v4.__class__ is datetime and v4.tzinfo is utc else time_text(v4)
    return [('ce-id', v0), ('ce-specversion', v1), ('ce-source', source_texts[v2]), \
('ce-type', type_texts[v3]), ('ce-time', v4)]""",
    _compile.member_encoder_source: """\
def convert(attributes):
    v0, v1, v2, v3, v4 = attributes.values()
    if not (v0.__class__ is v1.__class__ is v2.__class__ is v3.__class__ is str):
        raise NotHandled
    if not (v1 == "1.0"):
        raise NotHandled
    if not (v0 and v1 and v2 and v3):
        raise NotHandled
    v4 = to_builtins(v4) if v4.__class__ is datetime and v4.tzinfo is utc else time_text(v4)
    text = to_json({**attributes, "time": v4})
    if not (is_printable(text, (v0, v1, v2, v3))):
        raise NotHandled
    return text""",
}


@each("source", SOURCES)
def test_source_text_of_the_encoders(source: Callable[[Any], str]) -> None:
    assert source(("id", "specversion", "source", "type", "time")) == SOURCES[source]


def test_source_text_of_the_decoder() -> None:
    assert (
        _compile.header_decoder_source(("Nats-Msg-Id", "ce-type", "ce-id", "CE-Source", "ce-specversion"))
        == """\
def convert(values):
    v0, v1, v2, v3, v4, = values
    if not (v0.__class__ is v1.__class__ is v2.__class__ is v3.__class__ is v4.__class__ is str):
        raise NotHandled
    if not (v4 == "1.0"):
        raise NotHandled
    if not (v2):
        raise NotHandled
    if not is_literal(f"{v2}"):
        v2, = unescape_all((v2,))
    return {'type': type_values[v1], 'id': v2, 'source': source_values[v3], 'specversion': v4}"""
    )


# --- Limits -------------------------------------------------------------------------------------------------------


@each(
    "names",
    [
        ("specversion", "id", "source"),
        ("specversion", "id", "source", "type", "X"),
        ("specversion", "id", "source", "type", "data"),
        ("specversion", "id", "source", "type", ""),
    ],
)
def test_names_that_no_event_can_have_are_cached_as_declined(names: Any) -> None:
    for _ in range(2):
        assert encode_headers(dict.fromkeys(names, "1.0")) is None
        assert not valid_names[names]


@each("names", [("a", 1), ("a", None), ("a", Text("b")), ("x" * 2000,), tuple(map(str, range(100)))])
def test_unusual_names_are_not_cached(names: Any) -> None:
    converters = CompiledConverters(len)
    converters.uses_before_compile = 1
    with pytest.raises(NotHandled):
        converters[names]
    assert not converters
    assert not converters._uses


def test_caches_are_bounded() -> None:
    """Names and values that a peer invents do not fill the memory, in either direction or mode."""
    for number in range(1500):
        message = binary_message(
            b"1",
            **{f"x{number}": f"{chr(0x4E00 + number)}"},
            source=f"/{number}",
            type=f"t{number}",
            datacontenttype=f"application/x{number}+json",
            dataschema=f"s:{number}",
        )
        event = from_nats_message(message)
        from_nats_message(to_nats_message(event, f"subject.{number}", mode="structured"))
        to_nats_message(event, "s" * 1000)
        dedup_id(event)
        encode_block(event, True)
    by_text, by_names = caches(BoundedCache), caches(BoundedNamesCache)
    assert len(by_text) == 17
    assert len(by_names) == len(CONVERTERS) + 2
    counted = [converters._uses for converters in CONVERTERS]
    assert max(map(len, (*by_text, *counted, escapes))) <= 1024
    assert max(len(text) for cache in by_text for text in cache) <= MAX_STRING_LENGTH
    assert max(map(len, by_names)) <= MAX_TUPLES


def caches(kind: type) -> list[Any]:
    """Return the caches in modules of the codec and in dicts of these."""
    found = {}
    for name, module in sys.modules.items():
        if name.startswith("ce_nats.codec."):
            values = [*vars(module).values()]
            values += [value for one in values if isinstance(one, dict) for value in one.values()]
            found.update({id(value): value for value in values if isinstance(value, kind)})
    return [*found.values()]


def test_functions_are_compiled_less_often_during_a_flood_of_names() -> None:
    made: list[Any] = []

    def make(names: Any) -> Any:
        made.append(names)
        return len

    converters = CompiledConverters(make)
    converters.uses_before_compile = 2
    for number in range(4 * MAX_TUPLES):
        for _ in range(2):
            with suppress(NotHandled):
                converters[str(number),]
    assert MAX_TUPLES <= len(made) <= MAX_TUPLES + 1
    assert converters.uses_before_compile == 4


def test_functions_are_compiled_as_often_as_before_after_a_flood() -> None:
    converters = CompiledConverters(lambda names: list)
    for number in range(16 * MAX_TUPLES):
        for _ in range(USES_BEFORE_COMPILE):
            with suppress(NotHandled):
                converters[str(number),]
    assert converters.uses_before_compile > USES_BEFORE_COMPILE
    for number in range(4 * CALM):
        with pytest.raises(NotHandled):
            converters["once", str(number)]
    assert converters.uses_before_compile == USES_BEFORE_COMPILE
