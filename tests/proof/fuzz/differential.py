"""Implementations of the same rules against each other: every message has the same outcome with all of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from ce_nats import ContentMode, DecodeError, NatsMessage, Timestamp, from_nats_message, to_nats_message
from ce_nats.aio.core._raw_decoder import RawDecoder, raw_decoder
from ce_nats.arrow import explode_cloudevents
from ce_nats.codec import _fast_path
from ce_nats.codec.fast._blocks import block_shapes, unescaped_shapes
from ce_nats.wire.nats import read_header_block
from tests.proof.fuzz.decoders import Message
from tests.proof.fuzz.inputs import (
    BLOCK,
    KINDS,
    MAP_OF_LISTS,
    Options,
    Pairs,
    block_of,
    fixture_messages,
    flattened,
    inputs_of_encoders,
    lists_of,
    octets_of,
    options,
    pairs_of,
    split,
)
from tests.proof.fuzz.target import Target
from tests.support.arrow_rows import Row, compare
from tests.support.strategies import Event, outcome, without_fast_path

# --- Fast path and full codec ---------------------------------------------------------------------------------------


def fast_path(call_of: Callable[[bytes], Callable[[], Any]], inputs: list[bytes]) -> Iterator[Hashable]:
    """Run calls with the fast path, again with what it has cached, and with the full codec only."""
    calls = [call_of(data) for data in inputs]
    first, cached = ([outcome(call) for call in calls] for _ in range(2))
    with without_fast_path():
        full = [outcome(call) for call in calls]
    for fast, again, right in zip(first, cached, full):
        assert fast == right, (fast, right)
        assert again == right, (again, right)
        yield _kind(right)


def _kind(found: Any) -> Hashable:
    """Return what tells outcomes apart: of an error all but its text, of a result the names, but not the values."""
    first = found[0]
    if isinstance(first, type):
        return first, found[1]
    if isinstance(first, NatsMessage):
        return tuple(first.headers)[:8]
    return len(first["dict"]), *found[2:]


def decoding(data: bytes) -> Callable[[], Any]:
    wanted = options(data)
    headers, payload = split(data)
    return partial(
        from_nats_message,
        Message(pairs_of(headers), payload),
        mode=wanted.mode,
        dialect=wanted.dialect,
        parse_data=wanted.parse_data,
        extension_types=wanted.types or None,
    )


def blocks(inputs: list[bytes]) -> list[Hashable]:
    """Decode header blocks and payloads; inputs with the same options share a decoder."""
    decoders: dict[Hashable, RawDecoder] = {}
    with pytest.MonkeyPatch.context() as patch:
        for shapes in (block_shapes, unescaped_shapes):
            patch.setattr(shapes, "uses_before_compile", 1)
        return list(fast_path(partial(_block_decoding, decoders), inputs))


def _block_decoding(decoders: dict[Hashable, RawDecoder], data: bytes) -> Callable[[], Any]:
    """Headers are lines of the block: all of it, or those after the version line."""
    wanted = options(data)
    headers, payload = split(data)
    block = block_of(headers if wanted.bits & 1 or not headers else b"NATS/1.0\n" + headers)
    key = wanted.mode, wanted.dialect, wanted.parse_data, *wanted.types.items()

    def decode() -> Any:
        place = _fast_path.block_decoder, key
        if place not in decoders:
            decoders[place] = raw_decoder(
                mode=wanted.mode,
                dialect=wanted.dialect,
                parse_data=wanted.parse_data,
                extension_types=wanted.types or None,
            )
        return decoders[place](payload or b"", block)

    return decode


def encoding(data: bytes) -> Callable[[], Any]:
    """Headers are attributes, those with a declared type of that type if they can be; the payload is data."""
    wanted = options(data)
    headers, payload = split(data)
    attributes: dict[Any, Any] = dict(pairs_of(headers) or ())
    for name, kind in wanted.types.items():
        if isinstance(attributes.get(name), str):
            attributes[name] = _converted(attributes[name], kind)
    return partial(
        to_nats_message, Event(attributes, _data_of(payload, wanted.bits)), "s", mode=wanted.mode or ContentMode.BINARY
    )


def _converted(text: str, kind: Any) -> Any:
    if kind is datetime:
        try:
            time = Timestamp.parse(text)
        except ValueError:
            return text
        return time if len(text) % 2 else datetime.fromisoformat(time.isoformat())
    if kind is bytes:
        return text.encode("utf-8", "surrogateescape")
    if kind is bool:
        return text == "true"
    try:
        return int(text) if kind is int else text
    except ValueError:
        return text


def _data_of(payload: bytes | None, bits: int) -> Any:
    """Return the payload as bytes, as text, or as the value of its JSON."""
    if payload is None or bits < 2:
        return payload
    text = payload.decode("utf-8", "surrogateescape")
    if bits < 4:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return [text]


# --- Arrow and codec ------------------------------------------------------------------------------------------------

_SPARK_TYPES = {str: "string", int: "int", bool: "boolean", bytes: "binary", datetime: "timestamp"}


def arrow(inputs: list[bytes]) -> list[Hashable]:
    """Decode messages with the same options together."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for place, data in enumerate(inputs):
        wanted = options(data)
        groups[wanted.kind, tuple(wanted.types.items())].append(place)
    outcomes: list[Hashable] = [None] * len(inputs)
    for places in groups.values():
        found = _explode(options(inputs[places[0]]), [inputs[place] for place in places])
        for place, one in zip(places, found):
            outcomes[place] = one
    return outcomes


def _explode(wanted: Options, inputs: list[bytes]) -> list[Hashable]:
    types = {name: _SPARK_TYPES[kind] for name, kind in wanted.types.items() if kind is not None}
    parts = [split(data) for data in inputs]
    payloads = [payload for _, payload in parts]
    if wanted.kind == BLOCK:
        return _explode_blocks([block_of(headers) for headers, _ in parts], payloads, types)
    found = [pairs_of(headers) for headers, _ in parts]
    make = _maps_of_lists if wanted.kind == MAP_OF_LISTS else _MAKERS[KINDS[wanted.kind]]
    rows, column = make(found)
    return _compare(rows, column, payloads, types)


def _compare(rows: list[Any], column: pa.Array, payloads: list[bytes | None], types: dict[str, str]) -> list[Hashable]:
    given = pa.table({"headers": column, "data": pa.array(payloads, pa.binary())})
    pairs: list[Row] = list(zip(rows, payloads))
    return [(one["ce_error"], one["ce_mode"], len(one["ce_extensions"] or ())) for one in compare(pairs, given, types)]


def _explode_blocks(blocks: list[bytes], payloads: list[bytes | None], types: dict[str, str]) -> list[Hashable]:
    """Blocks that are not decoded have the error of the decoder of blocks; all others have the columns of the codec."""
    rows, outcomes = {}, dict[int, Hashable]()
    for place, block in enumerate(blocks):
        try:
            rows[place] = read_header_block(block, "surrogateescape").headers.items() if block else []
        except DecodeError as error:
            outcomes[place] = error.code
    column, data = pa.array(blocks, pa.binary()), pa.array(payloads, pa.binary())
    errors = explode_cloudevents(pa.table({"headers": column, "data": data}), extensions=types)["ce_error"].to_pylist()
    for place, code in outcomes.items():
        assert errors[place] == str(code), (blocks[place], errors[place])
    if rows:
        places = pa.array(list(rows))
        found = _compare([*rows.values()], column.take(places), [payloads[place] for place in rows], types)
        outcomes.update(zip(rows, found))
    return [outcomes[place] for place in range(len(blocks))]


def _characters(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _lists(name: Callable[..., Any], value: Callable[..., Any], rows: list[Pairs | None]) -> tuple[list[Any], pa.Array]:
    """Return rows, and a column of lists of pairs."""
    made = [pairs if pairs is None else [(name(one), value(other)) for one, other in pairs] for pairs in rows]
    kinds = [pa.string() if convert is _characters else pa.binary() for convert in (name, value)]
    entry = pa.struct(list(zip(("key", "value"), kinds)))
    return made, pa.array(
        [pairs if pairs is None else [dict(zip(("key", "value"), pair)) for pair in pairs] for pairs in made],
        pa.list_(entry),
    )


def _maps(rows: list[Pairs | None]) -> tuple[list[Any], pa.Array]:
    """Return rows, and a column of maps, in which no key is NULL."""
    made = [pairs and [(octets_of(name) or b"", octets_of(value)) for name, value in pairs] for pairs in rows]
    return made, pa.array(made, pa.map_(pa.binary(), pa.binary()))


def _maps_of_lists(rows: list[Pairs | None]) -> tuple[list[Any], pa.Array]:
    lists = [pairs if pairs is None else lists_of(pairs) for pairs in rows]
    made = [pairs if pairs is None else flattened(pairs) for pairs in lists]
    return made, pa.array(lists, pa.map_(pa.binary(), pa.list_(pa.binary())))


_MAKERS: dict[str, Callable[[list[Pairs | None]], tuple[list[Any], pa.Array]]] = {
    "text": partial(_lists, _characters, _characters),
    "text-octets": partial(_lists, _characters, octets_of),
    "octets-text": partial(_lists, octets_of, _characters),
    "octets": partial(_lists, octets_of, octets_of),
    "map": _maps,
}

TARGETS = [
    Target(
        "fast-decode",
        "The fast path and the full codec decode the same.",
        lambda inputs: list(fast_path(decoding, inputs)),
        lambda: list(fixture_messages()),
    ),
    Target(
        "fast-blocks",
        "The fast path and the full codec decode the same from header blocks.",
        blocks,
        lambda: list(fixture_messages()),
    ),
    Target(
        "fast-encode",
        "The fast path and the full codec encode the same.",
        lambda inputs: list(fast_path(encoding, inputs)),
        inputs_of_encoders,
    ),
    Target(
        "arrow",
        "Columns of Arrow are what the codec decodes, for all types of columns.",
        arrow,
        lambda: sorted(fixture_messages(), key=lambda data: data[:2]),  # few groups
        batch=250,
        is_aligned=True,
    ),
]
