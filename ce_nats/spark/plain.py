"""
Events as conforming senders write them, at a fraction of the cost: the common case of binary.py and structured.py.

Header names in lower case, values of printable ASCII without quotes; JSON events of strings and, in the last place, data.
What is out of the ordinary, bad messages included, is not plain; the careful code then has the word, and is the only
place that knows error codes.

The work is done in steps, each of which becomes a projection of its own: what a step names is computed once, and the code
that Spark generates stays small enough for the JVM to compile. Lists of attributes are looped over for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import and_
from typing import Final, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType

from . import json, media_type, percent, timestamp
from .attributes import ABSOLUTE_URI, FORBIDDEN, type_error
from .expressions import at, find, matches
from .mode import BINARY, PREFIX, STRUCTURED
from .schema import ATTRIBUTES

__all__ = ["STEPS", "Columns", "check", "event"]

# A column of the steps before, by name.
Columns: TypeAlias = Callable[[str], Column]

_CONTENT_TYPE: Final = "Content-Type"
_STRUCTURED_TYPE: Final = "application/cloudevents+json"
_JSON: Final = "application/json"
_OTHER_SPELLING: Final = r"(?i)\A(?:ce-|content-type\z)"
_EXTENSION: Final = r"\A(?!data\z)[a-z0-9]++\z"
_PLAIN_HEADER: Final = r"\A[!#-~]*+\z"
_PLAIN_STRING: Final = r"\A[ -~]*+\z"
# Escapes of characters that no attribute may hold, and of some that it may.
_BAD_ESCAPE: Final = r"%(?:[01]|7[Ff]|[Cc]2%[89]|[Ee][Ff]%[Bb][7Ff]|[Ff].%..%[Bb][Ff])"
_SURROGATE: Final = r"\\u[dD][89a-fA-F]"
_REPLACEMENT: Final = "\ufffd"
_TO_END: Final = 2**31 - 1

# The places of attributes in the arrays of texts; extensions come behind them. Of the first two there is one spelling,
# so that nothing in them needs decoding.
_ORDER: Final = ("specversion", "time", "id", "source", "type", "subject", "dataschema", "datacontenttype")
_DECODED: Final = _ORDER.index("id")


def _texts(*texts: str) -> Column:
    return F.array(*map(F.lit, texts))


# --- Steps ----------------------------------------------------------------------------------------------------------


def _mode(get: Columns) -> dict[str, Column]:
    """Of ``names`` and ``values``: binary or structured, and whether there is nothing odd about the names."""
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
    return {"document": F.when(get("is_structured"), json.parse_plain(get("payload").cast("string")))}


def _pairs(get: Columns) -> dict[str, Column]:
    """Names and values to look attributes up in, whatever the mode."""
    is_structured, members = get("is_structured"), at(get("document"), 0)
    keys = F.when(is_structured, F.map_keys(members)).otherwise(get("names"))
    return {
        "keys": keys,
        "texts": F.when(is_structured, F.map_values(members)).otherwise(get("values")),
        "attributes": F.when(is_structured, F.map_keys(members)).otherwise(get("ce_names")),
    }


def _lookups(get: Columns) -> dict[str, Column]:
    is_structured, keys = get("is_structured"), get("keys")
    known = F.when(is_structured, _texts(*_ORDER)).otherwise(_texts(*(PREFIX + name for name in _ORDER)))
    others = [*_ORDER, "data", *(PREFIX + name for name in _ORDER)]
    extensions = F.filter(get("attributes"), lambda name: ~name.isin(*others))
    return {
        "wanted": F.concat(known, extensions),
        "extension_names": F.when(is_structured, extensions).otherwise(
            F.transform(extensions, lambda name: F.substring(name, F.lit(len(PREFIX) + 1), F.lit(_TO_END)))
        ),
        "has_data": F.coalesce(is_structured & (F.get(keys, F.size(keys) - 1) == "data"), F.lit(False)),
    }


def _raw(get: Columns) -> dict[str, Column]:
    keys, texts = get("keys"), get("texts")
    raw = F.transform(get("wanted"), lambda name: F.get(texts, (F.array_position(keys, name) - 1).cast("int")))
    return {"raw": raw, "start": F.when(get("is_structured"), _start(get, ":", ","))}


def _start(get: Columns, colon: str, comma: str) -> Column:
    """The JSON text of an event in front of its data, if all members are strings without escapes."""
    keys, texts, has_data = get("keys"), get("texts"), get("has_data")
    count = F.greatest(F.size(keys) - has_data.cast("int"), F.lit(0))
    members = F.transform(
        F.slice(keys, F.lit(1), count),
        lambda key, place: F.concat(F.lit('"'), key, F.lit(f'"{colon}"'), F.get(texts, place), F.lit('"')),
    )
    end = F.when(has_data, F.lit(f'{comma}"data"{colon}')).otherwise(F.lit("}"))
    return F.concat(F.lit("{"), F.array_join(members, comma), end)


def _joined(get: Columns) -> dict[str, Column]:
    is_structured, text, start = get("is_structured"), get("payload").cast("string"), get("start")
    return {
        "joined": F.concat_ws("", F.slice(get("raw"), F.lit(_DECODED + 1), F.lit(_TO_END))),
        # Compact JSON, or with the blanks that Python's json module puts in.
        "front": F.when(text.startswith(start), start).when(is_structured, _start(get, ": ", ", ")),
    }


def _decoded(get: Columns) -> dict[str, Column]:
    has_escapes = ~get("is_structured") & get("joined").contains("%")
    decoded = F.transform(
        get("raw"), lambda text: F.when(text.contains("%"), percent.decode_plain(text)).otherwise(text)
    )
    return {
        "has_escapes": has_escapes,
        "decoded": F.when(has_escapes, decoded).otherwise(get("raw")),
        "time": timestamp.parse_plain(at(get("raw"), _ORDER.index("time"))),
    }


def _verdict(get: Columns) -> dict[str, Column]:
    is_plain = F.when(get("is_structured"), _is_plain_json(get)).otherwise(_is_plain_header(get))
    # An attribute that is there twice counts once, and one that is null in JSON not at all.
    found = F.size(F.filter(get("raw"), lambda text: text.isNotNull())) + get("has_data").cast("int")
    wanted = get("wanted")
    is_complete = (F.size(get("attributes")) == found) & (F.size(F.array_distinct(wanted)) == F.size(wanted))
    return {"is_plain": is_plain & is_complete & get("is_regular")}


STEPS: Final = (_mode, _parse, _pairs, _lookups, _raw, _joined, _decoded, _verdict)


def _is_plain_header(get: Columns) -> Column:
    joined = get("joined")
    decoded = F.concat_ws("", F.slice(get("decoded"), F.lit(_DECODED + 1), F.lit(_TO_END)))
    # A malformed escape has become NULL, and bytes that are not UTF-8 a replacement character.
    is_lost = F.exists(F.arrays_zip(get("raw").alias("raw"), get("decoded").alias("decoded")), lambda pair: pair["raw"].isNotNull() & pair["decoded"].isNull())
    return matches(joined, _PLAIN_HEADER) & (
        ~get("has_escapes") | (~matches(joined, _BAD_ESCAPE) & ~decoded.contains(_REPLACEMENT) & ~is_lost)
    )


def _is_plain_json(get: Columns) -> Column:
    joined, text, front = get("joined"), get("payload").cast("string"), get("front")
    elements = get("document")
    is_whole = (F.size(elements) == 2) & (at(elements, 1)[""] == json.LAST_NUMBER) & ~text.contains(json.LAST_NUMBER)
    is_plain = matches(joined, _PLAIN_STRING) | ~matches(joined, FORBIDDEN)
    # As Spark spells the data: a number that is no float, and bytes that are not UTF-8, can be told by it.
    data = F.coalesce(at(get("texts"), F.size(get("texts")) - 1), F.lit(""))
    is_plain_data = ~data.contains('Infinity"') & ~data.contains(_REPLACEMENT)
    has_surrogate = text.contains("\\u") & matches(text, _SURROGATE)
    end = F.substring(text, -2, 2)
    is_data_last = text.startswith(front) & text.endswith("}") & ~end.isin(" }", "\n}", "\t}", "\r}")
    content_type = at(get("decoded"), _ORDER.index("datacontenttype"))
    is_json = content_type.isNull() | (content_type == _JSON) | media_type.is_json(content_type)
    return is_whole & is_plain & F.when(
        get("has_data"), is_data_last & is_json & is_plain_data & ~has_surrogate
    ).otherwise(text == front)


# --- The outcome ----------------------------------------------------------------------------------------------------


def check(get: Columns, types: Mapping[str, DataType]) -> Column:
    """Whether this code can answer; never NULL."""
    decoded = get("decoded")
    values = {name: at(decoded, place) for place, name in enumerate(_ORDER)}
    content_type, schema = values["datacontenttype"], values["dataschema"]
    checks = [
        get("is_plain"),
        ~F.exists(get("extension_names"), lambda name: ~matches(name, _EXTENSION)),
        values["specversion"] == "1.0",
        values["id"].isNotNull() & values["source"].isNotNull() & values["type"].isNotNull(),
        ~F.array_contains(F.array_compact(F.slice(decoded, 1, len(_ORDER))), ""),
        values["time"].isNull() | get("time").isNotNull(),
        content_type.isNull() | (content_type == _JSON) | media_type.is_valid(content_type),
        schema.isNull() | matches(schema, ABSOLUTE_URI),
    ]
    for name, kind in types.items():
        error = type_error(_extension(get, name), kind)
        if error is not None:
            checks.append(error.isNull())
    return F.coalesce(reduce(and_, checks), F.lit(False))


def event(get: Columns) -> dict[str, Column]:
    """The columns of the event, by their names in ``FLAT``, where :func:`check` is true."""
    is_structured, payload, front = get("is_structured"), get("payload"), get("front")
    decoded = get("decoded")
    size = F.octet_length(front)
    data = F.when(is_structured, F.when(get("has_data"), F.substring(payload, size + 1, F.length(payload) - size - 1)))
    values: dict[str, Column] = {name: at(decoded, place) for place, name in enumerate(_ORDER)}
    return {
        **values,
        "time": get("time"),
        "extensions": F.map_from_arrays(
            get("extension_names"), F.slice(decoded, F.lit(len(_ORDER) + 1), F.lit(_TO_END))
        ),
        "data": data.otherwise(F.when(F.length(payload) > 0, payload)),
        "mode": F.when(is_structured, F.lit(STRUCTURED)).otherwise(F.lit(BINARY)),
        "error": F.lit(None).cast("string"),
    }


def _extension(get: Columns, name: str) -> Column:
    return find(get("extension_names"), name, F.slice(get("decoded"), F.lit(len(_ORDER) + 1), F.lit(_TO_END)))
