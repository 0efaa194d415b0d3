"""
Events as conforming senders write them, at a fraction of the cost: the common case of binary.py and structured.py.

Header names in lower case, values of printable ASCII without quotes, escapes that are right; JSON events of strings
without escapes and, in the last place, JSON data. What is out of the ordinary, bad messages included, is not plain;
the careful code then has the word, and is the only place that knows error codes.

The work is done in steps, each of which becomes a projection of its own, so that what a step names is computed once.
Attributes are written out one by one, because a loop over the headers costs more than all else together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import add, and_
from typing import Final, TypeAlias

from pyspark.sql import Column
from pyspark.sql.types import DataType

from . import envelope, media_type, percent, timestamp
from .attributes import ABSOLUTE_URI, is_legal, type_error
from .expressions import find, full, matches, printable, uncompiled
from .functions import F
from .mode import BINARY, PREFIX, STRUCTURED
from .schema import ATTRIBUTES, REQUIRED

__all__ = ["STEPS", "Columns", "check", "event"]

# A column of the steps before, by name.
Columns: TypeAlias = Callable[[str], Column]

_CONTENT_TYPE: Final = "Content-Type"
_STRUCTURED_TYPE: Final = "application/cloudevents+json"
# The header that most messages in a stream have beside those of an event.
_MSG_ID: Final = "Nats-Msg-Id"
_KNOWN: Final = (*(PREFIX + name for name in ATTRIBUTES), _CONTENT_TYPE, _MSG_ID)
_OURS: Final = rf"(?i)\A(?:{PREFIX}|content-type\z)"
_EXTENSION: Final = full(r"(?!data\z)[a-z0-9]+")
# In no header of a message.
_NOWHERE: Final = "\r\n"
# What has a meaning of its own in a header, or is white space that might be none of the value.
_RESERVED: Final = ' "%'
_QUOTING: Final = ' "'
_CLEAN: Final = rf"\A{printable(without=_RESERVED)}*\z"
_PLAIN: Final = rf"\A{printable(without=_QUOTING)}*\z"
# Stands where bytes were not UTF-8.
_REPLACEMENT: Final = "\ufffd"
_JSON: Final = "application/json"
# There is one way to write a version, and a time needs no escapes.
_CODED: Final = tuple(name for name in ATTRIBUTES if name not in ("specversion", "time"))
_TO_END: Final = 2**31 - 1


# --- Steps: from "names", "values" and "payload" --------------------------------------------------------------------


def _read(get: Columns) -> dict[str, Column]:
    """Names and values to look attributes up in, whatever the mode, and what is not looked up by name."""
    names, values, payload = get("names"), get("values"), get("payload")
    text = payload.cast("string")
    content_type = find(names, _CONTENT_TYPE, values)
    # A message without any header of an event is read as JSON, too.
    has_version = F.array_position(names, f"{PREFIX}specversion") > 0
    is_structured = F.coalesce(content_type == _STRUCTURED_TYPE, ~has_version)
    front = F.when(is_structured, envelope.front(text))
    pieces = envelope.pieces(front)
    keys = F.coalesce(envelope.names(pieces), names)
    others = F.filter(names, lambda name: ~name.isin(*_KNOWN))
    extensions = F.when(is_structured, F.filter(keys, lambda name: ~name.isin(*ATTRIBUTES))).otherwise(
        F.filter(others, lambda name: name.startswith(PREFIX))
    )
    # Headers that are known here and are no attributes. What is there twice counts once.
    msg_id = find(names, _MSG_ID, values)
    own = _count((content_type, msg_id))
    in_headers = F.size(names) - F.size(others) - own
    # Ours in another spelling, or in a message that has its attributes elsewhere.
    is_strange = F.exists(others, lambda name: (is_structured | ~name.startswith(PREFIX)) & matches(name, _OURS))
    has_other_type = ~is_structured & F.coalesce(F.lower(content_type).contains("cloudevents"), F.lit(False))
    # The text of attributes is looked at later on. The blank keeps halves of characters apart.
    is_known = F.size(others) == F.when(is_structured, 0).otherwise(F.size(extensions))
    foreign = F.when(is_known, F.concat_ws(" ", content_type, msg_id)).otherwise(F.concat_ws(" ", names, values))
    is_text = F.is_valid_utf8(foreign)
    is_clean = ~is_strange & ~has_other_type & is_text & _has_no_null(names) & _has_no_null(values)
    return {
        "keys": keys,
        "texts": F.coalesce(envelope.values(pieces), values),
        "is_structured": uncompiled(is_structured),
        "member": envelope.data(text, front),
        "extensions": extensions,
        # How many attributes there have to be if all that is there is known; NULL where something cannot be.
        "expected": F.when(is_clean & ~is_structured, in_headers).when(
            is_clean & (in_headers == 0), F.size(keys) - F.size(extensions)
        ),
    }


def _look_up(get: Columns) -> dict[str, Column]:
    """The attributes as they stand there."""

    def raw(name: str) -> Column:
        key = F.when(get("is_structured"), F.lit(name)).otherwise(F.lit(PREFIX + name))
        return find(get("keys"), key, get("texts"))

    return {f"raw_{name}": raw(name) for name in ATTRIBUTES} | {"raw_specversion": uncompiled(raw("specversion"))}


def _count(columns: Iterable[Column]) -> Column:
    """How many are not NULL."""
    return reduce(add, (column.isNotNull().cast("int") for column in columns))


def _has_no_null(array: Column) -> Column:
    """True where there is no NULL in an array; NULL where there is one."""
    return ~F.array_contains(array, _NOWHERE)


def _decode(get: Columns) -> dict[str, Column]:
    is_structured, keys, values = get("is_structured"), get("keys"), get("texts")
    texts = F.transform(get("extensions"), lambda name: find(keys, name, values))
    # One look at all values together for what is common to them. The usual type of content is known to be right.
    content_type = F.nullif(get("raw_datacontenttype"), F.lit(_JSON))
    others = (get(f"raw_{name}") for name in _CODED if name != "datacontenttype")
    joined = F.concat_ws("", *others, content_type, texts)
    has_escapes = ~is_structured & ~matches(joined, _CLEAN)

    def decoded(value: Column) -> Column:
        return F.when(has_escapes & value.contains("%"), percent.decode_plain(value)).otherwise(value)

    def bare(name: Column) -> Column:
        return F.when(is_structured, name).otherwise(F.substring(name, F.lit(len(PREFIX) + 1), F.lit(_TO_END)))

    return {name: decoded(get(f"raw_{name}")) for name in _CODED} | {
        "joined": joined,
        "has_escapes": uncompiled(has_escapes),
        "extension_names": F.transform(get("extensions"), bare),
        "extension_texts": F.when(has_escapes, F.transform(texts, decoded)).otherwise(texts),
        "time": timestamp.parse_plain(get("raw_time")),
    }


STEPS: Final = (_read, _look_up, _decode)


# --- The outcome ----------------------------------------------------------------------------------------------------


def check(get: Columns, types: Mapping[str, DataType]) -> Column:
    """Whether this code can answer; never NULL."""
    content_type, schema, names = get("datacontenttype"), get("dataschema"), get("extension_names")
    checks = [
        _count(get(f"raw_{name}") for name in ATTRIBUTES) == get("expected"),
        get("raw_specversion") == "1.0",
        *(get(name) != "" for name in REQUIRED if name in _CODED),
        get("subject").isNull() | (get("subject") != ""),
        get("raw_time").isNull() | get("time").isNotNull(),
        content_type.isNull() | (content_type == _JSON) | media_type.is_valid(content_type),
        schema.isNull() | matches(schema, ABSOLUTE_URI),
        ~F.exists(names, lambda name: ~matches(name, _EXTENSION)),
        (F.size(names) < 2) | (F.size(F.array_distinct(names)) == F.size(names)),
        F.when(get("is_structured"), _is_plain_json(get)).otherwise(~get("has_escapes") | _is_plain_header(get)),
    ]
    for name, kind in types.items():
        error = type_error(find(names, name, get("extension_texts")), kind)
        if error is not None:
            checks.append(error.isNull())
    return F.coalesce(reduce(and_, checks), F.lit(False))


def _is_plain_header(get: Columns) -> Column:
    """Whether what was escaped is right; a malformed escape makes a NULL."""
    joined, texts = get("joined"), get("extension_texts")
    decoded = F.concat_ws("", *map(get, _CODED), texts)
    attributes = [*map(get, _CODED), get("raw_specversion"), get("raw_time")]
    return (
        matches(joined, _PLAIN)
        & (_count(attributes) == get("expected"))
        & _has_no_null(texts)
        & is_legal(decoded)
        & ~decoded.contains(_REPLACEMENT)
    )


def _is_plain_json(get: Columns) -> Column:
    content_type, member = get("datacontenttype"), get("member")
    text = get("payload").cast("string")
    is_json_data = content_type.isNull() | (content_type == _JSON) | media_type.is_json(content_type)
    return is_legal(get("joined")) & text.endswith("}") & (member.isNull() | (is_json_data & envelope.is_json(member)))


def event(get: Columns) -> dict[str, Column]:
    """Columns by the names of ``FLAT``, where :func:`check` is true."""
    is_structured, payload = get("is_structured"), get("payload")
    return {name: get(name) for name in ATTRIBUTES if name != "specversion"} | {
        "specversion": F.lit("1.0"),
        "extensions": F.map_from_arrays(get("extension_names"), get("extension_texts")),
        "data": F.when(is_structured, get("member").cast("binary")).otherwise(F.when(F.length(payload) > 0, payload)),
        "mode": F.when(is_structured, F.lit(STRUCTURED)).otherwise(F.lit(BINARY)),
    }
