"""
Events as conforming senders write them, at a fraction of the cost: the common case of binary.py and structured.py.

Header names in lower case, values of printable ASCII without quotes, escapes that are right; JSON events of strings
without escapes and, in the last place, JSON data. What is out of the ordinary, bad messages included, is not plain;
the careful code then has the word, and is the only place that knows error codes.

The work is done in steps, each of which becomes a projection of its own, so that what a step names is computed once.
Attributes are written out one by one, because a loop costs more; and since the JVM compiles no method of more than
8,000 bytes, two of the steps use functions for which Spark generates no code (``from_json``, ``zip_with``), which
divides the generated code into pieces below that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add, and_
from typing import Final, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType

from . import envelope, media_type, percent, timestamp
from .attributes import ABSOLUTE_URI, is_legal, type_error
from .expressions import at, find, full, matches
from .mode import BINARY, PREFIX, STRUCTURED
from .schema import ATTRIBUTES

__all__ = ["STEPS", "Columns", "check", "event"]

# A column of the steps before, by name.
Columns: TypeAlias = Callable[[str], Column]

_CONTENT_TYPE: Final = "Content-Type"
_STRUCTURED_TYPE: Final = "application/cloudevents+json"
_OTHER_SPELLING: Final = r"(?i)\A(?:ce-|content-type\z)"
_EXTENSION: Final = full("(?!data$)[a-z0-9]++")
_PLAIN: Final = full("[!#-~]*+")
# Escapes of characters that no attribute may hold, and of some that it may.
_BAD_ESCAPE: Final = r"%(?:[01]|7[Ff]|[Cc]2%[89]|[Ee][Ff]%[Bb][7Ff]|[Ff].%..%[Bb][Ff])"
_REPLACEMENT: Final = "\ufffd"
_JSON: Final = "application/json"
# There is one way to write a version, and a time needs no escapes.
_CODED: Final = tuple(name for name in ATTRIBUTES if name not in ("specversion", "time"))
_TO_END: Final = 2**31 - 1


def _index(names: Column, name: Column | str) -> Column:
    return (F.array_position(names, name) - 1).cast("int")


# --- Steps: from "names", "values" and "payload" --------------------------------------------------------------------


def _mode(get: Columns) -> dict[str, Column]:
    names = get("names")
    content_type = find(names, _CONTENT_TYPE, get("values"))
    attributes = F.filter(names, lambda name: name.startswith(PREFIX))
    is_structured = F.when(content_type.isNull(), F.size(attributes) == 0).otherwise(content_type == _STRUCTURED_TYPE)
    is_odd = F.exists(
        names, lambda name: ~name.startswith(PREFIX) & (name != _CONTENT_TYPE) & matches(name, _OTHER_SPELLING)
    )
    is_clear = F.when(content_type.isNull(), F.lit(True)).otherwise(
        (F.size(F.filter(names, lambda name: name == _CONTENT_TYPE)) == 1)
        & (is_structured | ~F.lower(content_type).contains("cloudevents"))
    )
    return {"ce_names": attributes, "is_structured": is_structured, "is_regular": ~is_odd & is_clear}


def _parse(get: Columns) -> dict[str, Column]:
    return {"maps": F.when(get("is_structured"), envelope.maps(get("payload").cast("string")))}


def _pairs(get: Columns) -> dict[str, Column]:
    """Names and values to look attributes up in, whatever the mode."""
    is_structured, members = get("is_structured"), at(get("maps"), 0)
    return {
        "keys": F.when(is_structured, F.map_keys(members)).otherwise(get("names")),
        "texts": F.when(is_structured, F.map_values(members)).otherwise(get("values")),
        "attributes": F.when(is_structured, F.map_keys(members)).otherwise(get("ce_names")),
    }


def _look_up(get: Columns) -> dict[str, Column]:
    is_structured, keys, texts = get("is_structured"), get("keys"), get("texts")

    def raw(name: str) -> Column:
        key = F.when(is_structured, F.lit(name)).otherwise(F.lit(PREFIX + name))
        return F.get(texts, _index(keys, key))

    no_extensions = [*ATTRIBUTES, "data", *(PREFIX + name for name in ATTRIBUTES)]
    has_data = F.coalesce(is_structured & envelope.has_data(keys), F.lit(False))
    return {f"raw_{name}": raw(name) for name in ATTRIBUTES} | {
        "extensions": F.filter(get("attributes"), lambda name: ~name.isin(*no_extensions)),
        "has_data": has_data,
        "is_json": F.when(is_structured, _is_json(get)),
        "count": F.size(get("attributes")),
    }


def _is_json(get: Columns) -> Column:
    """Whether the document is strict JSON, and the data the last of its members if there is any."""
    text, keys, texts = get("payload").cast("string"), get("keys"), get("texts")
    respelled = F.when(envelope.has_data(keys), at(texts, F.size(keys) - 1))
    return envelope.is_whole(text, get("maps")) & envelope.is_plain_data(text, respelled)


def _join(get: Columns) -> dict[str, Column]:
    keys, texts, extensions = get("keys"), get("texts"), get("extensions")
    content_type = F.nullif(get("raw_datacontenttype"), F.lit(_JSON))
    values = F.transform(extensions, lambda name: F.get(texts, _index(keys, name)))
    joined = F.concat_ws(
        "", *(get(f"raw_{name}") for name in _CODED if name != "datacontenttype"), content_type, values
    )
    front = envelope.front(get("payload").cast("string"), keys, texts)
    return {"extension_values": values, "joined": joined, "front": F.when(get("is_structured"), front)}


def _decode(get: Columns) -> dict[str, Column]:
    has_escapes = ~get("is_structured") & get("joined").contains("%")

    def decoded(value: Column) -> Column:
        return F.when(has_escapes & value.contains("%"), percent.decode_plain(value)).otherwise(value)

    names = F.transform(get("extensions"), lambda name: F.substring(name, F.lit(len(PREFIX) + 1), F.lit(_TO_END)))
    return {name: decoded(get(f"raw_{name}")) for name in _CODED} | {
        "has_escapes": has_escapes,
        "extension_names": F.when(get("is_structured"), get("extensions")).otherwise(names),
        "extension_texts": F.when(has_escapes, F.transform(get("extension_values"), decoded)).otherwise(
            get("extension_values")
        ),
        "time": timestamp.parse_plain(get("raw_time")),
    }


STEPS: Final = (_mode, _parse, _pairs, _look_up, _join, _decode)


# --- The outcome ----------------------------------------------------------------------------------------------------


def check(get: Columns, types: Mapping[str, DataType]) -> Column:
    """Whether this code can answer; never NULL."""
    names, content_type, schema = get("extension_names"), get("datacontenttype"), get("dataschema")
    texts = get("extension_texts")
    # What is there twice counts once, what has a malformed escape or is null in JSON not at all.
    found = reduce(
        add,
        [get(name).isNotNull().cast("int") for name in (*_CODED, "raw_specversion", "raw_time")]
        + [get("has_data").cast("int"), F.size(F.filter(texts, lambda text: text.isNotNull()))],
    )
    checks = [
        get("is_regular"),
        get("count") == found,
        get("raw_specversion") == "1.0",
        (get("id") != "") & (get("source") != "") & (get("type") != ""),
        get("subject").isNull() | (get("subject") != ""),
        get("raw_time").isNull() | get("time").isNotNull(),
        content_type.isNull() | (content_type == _JSON) | media_type.is_valid(content_type),
        schema.isNull() | matches(schema, ABSOLUTE_URI),
        ~F.exists(names, lambda name: ~matches(name, _EXTENSION)),
        (F.size(names) < 2) | (F.size(F.array_distinct(names)) == F.size(names)),
        F.when(get("is_structured"), _is_plain_json(get)).otherwise(_is_plain_header(get)),
    ]
    for name, kind in types.items():
        error = type_error(find(names, name, texts), kind)
        if error is not None:
            checks.append(error.isNull())
    return F.coalesce(reduce(and_, checks), F.lit(False))


def _is_plain_header(get: Columns) -> Column:
    decoded = F.concat_ws("", *map(get, _CODED), get("extension_texts"))
    is_legal_when_decoded = ~matches(get("joined"), _BAD_ESCAPE) & ~decoded.contains(_REPLACEMENT)
    return matches(get("joined"), _PLAIN) & (~get("has_escapes") | is_legal_when_decoded)


def _is_plain_json(get: Columns) -> Column:
    content_type, front = get("datacontenttype"), get("front")
    is_json_data = content_type.isNull() | (content_type == _JSON) | media_type.is_json(content_type)
    # Without data, the front is all of it.
    is_plain = F.when(get("has_data"), is_json_data).otherwise(F.octet_length(get("payload")) == F.octet_length(front))
    return get("is_json") & front.isNotNull() & is_plain & is_legal(get("joined"))


def event(get: Columns) -> dict[str, Column]:
    """Columns by the names of ``FLAT``, where :func:`check` is true."""
    is_structured, payload = get("is_structured"), get("payload")
    member = envelope.data(payload.cast("string"), get("front")).cast("binary")
    return {name: get(name) for name in ATTRIBUTES if name != "specversion"} | {
        "specversion": F.lit("1.0"),
        "extensions": F.map_from_arrays(get("extension_names"), get("extension_texts")),
        "data": F.when(is_structured, F.when(get("has_data"), member)).otherwise(
            F.when(F.length(payload) > 0, payload)
        ),
        "mode": F.when(is_structured, F.lit(STRUCTURED)).otherwise(F.lit(BINARY)),
    }
