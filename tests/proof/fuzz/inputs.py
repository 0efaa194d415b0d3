r"""
Messages as bytes, so that any bytes are a message, and a changed byte changes a header, the payload or an option.

    3 bytes of options
    NAME:VALUE\n for each header; without a colon the value is NULL, and the name \0 is NULL
    \n
    payload

Without the empty line the payload is NULL. Headers that are \0 are NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, NamedTuple

from ce_nats import ContentMode, Dialect
from ce_nats.conformance import Case, load_cases
from ce_nats.conformance._cases import octets, text
from tests.proof.fuzz.mutate import MAX_SIZE

OPTIONS_SIZE = 3
NULL = "\0"
# Types of columns of headers that Spark and Arrow accept, in the order of the first option.
KINDS = ("text", "text-octets", "octets-text", "octets", "map", "map-of-lists", "block")
MAP_OF_LISTS, BLOCK = KINDS.index("map-of-lists"), KINDS.index("block")
# Extensions that get declared types, and the types, in the order of the second option.
DECLARED = ("x", "n")
TYPES: tuple[Any, ...] = (..., str, int, bool, bytes, datetime, None)
_TYPE_NAMES = {"String": str, "Integer": int, "Boolean": bool, "Binary": bytes, "Timestamp": datetime}
_MODES = (None, None, ContentMode.BINARY, ContentMode.STRUCTURED)

Pairs = list[tuple[str | None, str | None]]
Lists = list[tuple[bytes, list[bytes | None] | None]]


class Options(NamedTuple):
    """
    The options of an input.

    Attributes:
        kind: Index in ``KINDS``.
        types: Declared types of extensions; None is the default type, a string.
        mode, dialect, parse_data: As for ``from_nats_message``.
        bits: Three bits that targets use in different ways.
    """

    kind: int
    types: dict[str, Any]
    mode: ContentMode | None
    dialect: Dialect
    parse_data: bool
    bits: int


@lru_cache(maxsize=2**16)
def options(data: bytes) -> Options:
    """Return the options in the first bytes of an input; any bytes are valid."""
    kind, types, rest = data[:OPTIONS_SIZE].ljust(OPTIONS_SIZE, b"\0")
    wanted = zip(DECLARED, (TYPES[types % 7], TYPES[types // 7 % 7]))
    return Options(
        kind % len(KINDS),
        {name: one for name, one in wanted if one is not ...},
        _MODES[rest & 3],
        Dialect.SDK_GO if rest & 12 == 12 else Dialect.SPEC,
        not rest & 16,
        rest >> 5,
    )


def written_options(kind: int = 0, types: Iterable[Any] = (), rest: int = 0) -> bytes:
    """Return options as bytes; ``types`` are those of ``DECLARED``, and ``...`` declares none."""
    first, second = [*map(TYPES.index, types), 0, 0][:2]
    return bytes([kind, first + 7 * second, rest])


def split(data: bytes) -> tuple[bytes, bytes | None]:
    """Return the headers and the payload of an input, not parsed."""
    headers, end, payload = data[OPTIONS_SIZE:].partition(b"\n\n")
    return headers, payload if end else None


def pairs_of(headers: bytes) -> Pairs | None:
    """Return headers as a message read from a stream has them: other bytes than UTF-8 are surrogate escapes."""
    if headers == b"\0":
        return None
    if not headers:
        return []
    found: Pairs = []
    for line in headers.decode("utf-8", "surrogateescape").split("\n"):
        name, colon, value = line.partition(":")
        found.append((None if name == NULL else name, value if colon else None))
    return found


def octets_of(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")


def lists_of(pairs: Pairs) -> Lists:
    r"""Return headers of a map of lists: values are divided at ``|``; \0 is an empty list, or a NULL in a list."""
    return [(octets_of(name) or b"", None if value is None else _list_of(value)) for name, value in pairs]


def _list_of(value: str) -> list[bytes | None]:
    return [] if value == NULL else [None if one == NULL else octets_of(one) for one in value.split("|")]


def flattened(lists: Lists) -> list[tuple[bytes, bytes | None]]:
    """Return the headers of a map of lists as pairs; a NULL instead of a list is a NULL value."""
    return [(name, value) for name, values in lists for value in ([None] if values is None else values)]


def block_of(headers: bytes) -> bytes:
    """Return a header block from the lines of an input; no lines are no block."""
    return headers.replace(b"\n", b"\r\n") + b"\r\n\r\n" if headers else b""


def written(options: bytes, headers: Iterable[tuple[str, str]], payload: bytes) -> bytes:
    lines = "\n".join(f"{name}:{value}" for name, value in headers).encode("utf-8", "surrogateescape")
    return options + lines + b"\n\n" + payload


# --- Seeds ----------------------------------------------------------------------------------------------------------


def fixture_messages() -> Iterator[bytes]:
    """Yield the messages of the conformance cases, with declared types; few of them for each type of headers."""
    for number, case in enumerate(decode_cases()):
        pairs = _pairs(case)
        if pairs is None:
            continue
        types = case.input.get("extension_types", {})
        wanted = written_options(types=[_TYPE_NAMES[types[name]] if name in types else ... for name in DECLARED])
        payload = octets(case.input.get("data", {"text": ""}))
        if len(payload) + sum(len(name) + len(value) for name, value in pairs) > 2000:
            continue
        yield written(wanted, pairs, payload)
        if number % 10 == 0:
            kind = number // 10 % len(KINDS)
            lines = [("NATS/1.0", "")] if kind == BLOCK else []
            yield written(bytes([kind]) + wanted[1:], [*lines, *pairs], payload).replace(b"NATS/1.0:", b"NATS/1.0")


def inputs_of_encoders() -> Iterator[bytes]:
    """Yield the attributes of decoded cases as headers, with data as text and as JSON, for both modes."""
    for data in fixture_messages():
        headers, payload = split(data)
        names = [(name[3:], value) for name, value in pairs_of(headers) or () if name and name[:3] == "ce-" and value]
        for rest in (0, 0xE3, 0x43):
            yield written(bytes([0, data[1], rest]), names, payload or b"")


@cache
def _cases() -> list[Case]:
    return load_cases()


def decode_cases() -> list[Case]:
    return [case for case in _cases() if case.op == "from_nats_message"]


def _pairs(case: Case) -> list[tuple[str, str]] | None:
    pairs = [(text(name), text(value)) for name, value in case.input.get("headers") or []]
    try:
        "".join(part for pair in pairs for part in pair).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None  # an unpaired surrogate, which bytes cannot have
    return pairs


def inputs_of(member: str, *ops: str) -> list[bytes]:
    """Return a member of the inputs of all conformance cases of some operations, as bytes."""
    found = []
    for case in _cases():
        if case.op in ops and member in case.input:
            spelling = case.input[member]
            value = octets(spelling) if _spells_octets(spelling) else text(spelling)
            found.append(value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass"))
    return [one for one in found if len(one) <= MAX_SIZE]


def _spells_octets(spelling: Any) -> bool:
    """Return whether a spelling is one of bytes; repeated bytes are spelled as bytes themselves."""
    return isinstance(spelling, dict) and (
        "text" in spelling or "base64" in spelling or _spells_octets(spelling.get("repeat"))
    )
