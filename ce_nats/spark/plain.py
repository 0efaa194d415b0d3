"""
Events as conforming senders write them, at a fraction of the cost: the common case of binary.py and structured.py.

Header names in lower case, values of printable ASCII without quotes; JSON events of strings and, in the last place, data.
Everything here is a conditional on whole columns, in steps that Spark compiles one by one. What is out of the ordinary,
bad messages included, is not plain; the careful code then has the word, and is the only place that knows error codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType

from . import json, media_type, percent, timestamp
from .attributes import ABSOLUTE_URI, FORBIDDEN, type_error
from .expressions import at, find, matches
from .headers import plain_columns
from .mode import BINARY, PREFIX, STRUCTURED
from .schema import ATTRIBUTES

__all__ = ["Step", "steps"]

# Names of new columns and what they are, given the columns of the steps before.
Step: TypeAlias = Callable[[Callable[[str], Column]], dict[str, Column]]

_CONTENT_TYPE: Final = "Content-Type"
_STRUCTURED_TYPE: Final = "application/cloudevents+json"
_JSON: Final = "application/json"
_OTHER_SPELLING: Final = r"(?i)\A(?:ce-|content-type\z)"
_EXTENSION: Final = r"\A[a-z0-9]++\z"
_PLAIN_HEADER: Final = r"\A[!#-~]*+\z"
_PLAIN_STRING: Final = r"\A[ -~]*+\z"
# Escapes of characters that no attribute may hold, and of some that it may.
_BAD_ESCAPE: Final = r"%(?:[01]|7[Ff]|[Cc]2%[89]|[Ee][Ff]%[Bb][7Ff]|[Ff].%..%[Bb][Ff])"
_SURROGATE: Final = r"\\u[dD][89a-fA-F]"
_REPLACEMENT: Final = "\ufffd"
_TEXTUAL: Final = ("id", "source", "type", "subject", "dataschema")


def steps(shape: DataType, types: Mapping[str, DataType]) -> list[Step]:
    """
    The steps from the columns ``headers`` and ``data`` (BINARY, not NULL) to the columns of an event.

    After the last one, ``plain`` says whether this code could answer; the columns of the event are right if it is true.

    Args:
        shape: Type of the headers.
        types: What extensions are declared as.
    """
    return [lambda get: _columns(get, shape), _mode, _parse, _members, _raw, _joined, _decoded, lambda get: _verdict(get, types), _event]


def _columns(get: Callable[[str], Column], shape: DataType) -> dict[str, Column]:
    names, values = plain_columns(get("headers"), shape)
    return {"header_names": names, "header_values": values}


def _mode(get: Callable[[str], Column]) -> dict[str, Column]:
    names = get("header_names")
    content_type = find(names, _CONTENT_TYPE, get("header_values"))
    marked = F.filter(names, lambda name: name.startswith(PREFIX))
    is_structured = F.when(content_type.isNull(), F.coalesce(F.size(marked), F.lit(0)) == 0).otherwise(content_type == _STRUCTURED_TYPE)
    is_odd = F.exists(names, lambda name: ~name.startswith(PREFIX) & (name != _CONTENT_TYPE) & matches(name, _OTHER_SPELLING))
    is_single = F.when(content_type.isNull(), F.lit(True)).otherwise(
        (F.size(F.filter(names, lambda name: name == _CONTENT_TYPE)) == 1) & (is_structured | ~F.lower(content_type).contains("cloudevents")))
    return {"marked": marked, "is_structured": is_structured, "is_regular": is_single & ~F.coalesce(is_odd, F.lit(False))}


def _parse(get: Callable[[str], Column]) -> dict[str, Column]:
    return {"document": F.when(get("is_structured"), json.parse_plain(get("data").cast("string")))}


def _members(get: Callable[[str], Column]) -> dict[str, Column]:
    is_structured, members = get("is_structured"), at(get("document"), 0)
    return {
        "names": F.when(is_structured, F.map_keys(members)).otherwise(get("marked")),
        "keys": F.when(is_structured, F.map_keys(members)).otherwise(get("header_names")),
        "values": F.when(is_structured, F.map_values(members)).otherwise(get("header_values")),
    }


def _raw(get: Callable[[str], Column]) -> dict[str, Column]:
    is_structured = get("is_structured")
    keys, values = get("keys"), get("values")

    def value(name: str) -> Column:
        key = F.when(is_structured, F.lit(name)).otherwise(F.lit(PREFIX + name))
        return F.get(values, (F.array_position(keys, key) - 1).cast("int"))

    known = [*ATTRIBUTES, "data", *(PREFIX + name for name in ATTRIBUTES)]
    return {f"raw_{name}": value(name) for name in ATTRIBUTES} | {
        "extension_keys": F.filter(get("names"), lambda name: ~name.isin(*known)),
        "data_value": F.when(is_structured & (F.get(keys, F.size(keys) - 1) == "data"), F.get(values, F.size(keys) - 1)),
        "has_data": F.coalesce(is_structured & (F.get(keys, F.size(keys) - 1) == "data"), F.lit(False)),
    }


def _joined(get: Callable[[str], Column]) -> dict[str, Column]:
    is_structured, keys, values = get("is_structured"), get("keys"), get("values")
    extension_values = F.transform(get("extension_keys"), lambda key: F.get(values, (F.array_position(keys, key) - 1).cast("int")))
    datacontenttype = F.nullif(get("raw_datacontenttype"), F.lit(_JSON))
    joined = F.concat_ws("", *(get(f"raw_{name}") for name in _TEXTUAL), datacontenttype, extension_values)
    return {"extension_values": extension_values, "joined": joined, "start": F.when(is_structured, _start(get, ":", ","))}


def _start(get: Callable[[str], Column], colon: str, comma: str) -> Column:
    """The JSON text of an event in front of its data, if all members are strings without escapes."""
    keys, values, has_data = get("keys"), get("values"), get("has_data")
    count = F.size(keys) - has_data.cast("int")
    members = F.transform(F.slice(keys, F.lit(1), F.greatest(count, F.lit(0))), lambda key, place: F.concat(F.lit('"'), key, F.lit(f'"{colon}"'), F.get(values, place), F.lit('"')))
    end = F.when(has_data, F.lit(f'{comma}"data"{colon}')).otherwise(F.lit("}"))
    return F.concat(F.lit("{"), F.concat_ws(comma, members), end)


def _decoded(get: Callable[[str], Column]) -> dict[str, Column]:
    is_structured, joined = get("is_structured"), get("joined")
    text = get("data").cast("string")
    has_escapes = ~is_structured & joined.contains("%")

    def decoded(value: Column) -> Column:
        return F.when(has_escapes & value.contains("%"), percent.decode_plain(value)).otherwise(value)

    return {
        **{name: decoded(get(f"raw_{name}")) for name in (*_TEXTUAL, "datacontenttype")},
        "extension_texts": F.transform(get("extension_values"), decoded),
        "has_escapes": has_escapes,
        "start_found": F.when(text.startswith(get("start")), get("start")).when(is_structured, _start(get, ": ", ", ")),
        "time": timestamp.parse_plain(get("raw_time")),
    }


def _verdict(get: Callable[[str], Column], types: Mapping[str, DataType]) -> dict[str, Column]:
    is_structured, joined, has_escapes = get("is_structured"), get("joined"), get("has_escapes")
    texts = [get(name) for name in (*_TEXTUAL, "datacontenttype")]
    raws = [get(f"raw_{name}") for name in (*_TEXTUAL, "datacontenttype")]
    extensions, extension_texts = get("extension_keys"), get("extension_texts")
    unescaped = F.concat_ws("", *texts, extension_texts)
    are_decoded = ~unescaped.contains(_REPLACEMENT) & ~F.exists(extension_texts, lambda text: text.isNull())
    for raw, text in zip(raws, texts, strict=True):
        are_decoded = are_decoded & (raw.isNull() | text.isNotNull())
    plain_header = matches(joined, _PLAIN_HEADER) & (~has_escapes | (~matches(joined, _BAD_ESCAPE) & are_decoded))
    plain_string = matches(joined, _PLAIN_STRING) | ~matches(joined, FORBIDDEN)
    count = F.lit(0)
    for name in ATTRIBUTES:
        count = count + get(f"raw_{name}").isNotNull().cast("int")
    count = count + F.size(extensions) + get("has_data").cast("int")
    datacontenttype, dataschema = get("datacontenttype"), get("dataschema")
    is_json = datacontenttype.isNull() | (datacontenttype == _JSON) | media_type.is_json(datacontenttype)
    checks = [
        get("is_regular"),
        get("raw_specversion") == "1.0",
        get("id") != "",
        get("source") != "",
        get("type") != "",
        get("subject").isNull() | (get("subject") != ""),
        F.size(get("names")) == count,
        get("raw_time").isNull() | get("time").isNotNull(),
        datacontenttype.isNull() | (datacontenttype == _JSON) | media_type.is_valid(datacontenttype),
        dataschema.isNull() | matches(dataschema, ABSOLUTE_URI),
        ~F.exists(extensions, lambda key: ~matches(F.when(is_structured, key).otherwise(F.substring(key, 4, 1000)), _EXTENSION) | key.isin("ce-data")),
        (F.size(extensions) < 2) | (F.size(F.array_distinct(extensions)) == F.size(extensions)),
        F.when(is_structured, plain_string & _is_plain_document(get) & (~get("has_data") | is_json)).otherwise(plain_header),
    ]
    for name, wanted in types.items():
        value = _extension(get, name)
        error = type_error(value, wanted)
        if error is not None:
            checks.append(value.isNull() | error.isNull())
    plain = checks[0]
    for check in checks[1:]:
        plain = plain & check
    return {"plain": F.coalesce(plain, F.lit(False))}


def _extension(get, name):
    key = F.when(get("is_structured"), F.lit(name)).otherwise(F.lit(PREFIX + name))
    return F.get(get("extension_texts"), (F.array_position(get("extension_keys"), key) - 1).cast("int"))


def _is_plain_document(get: Callable[[str], Column]) -> Column:
    text, start, value = get("data").cast("string"), get("start_found"), F.coalesce(get("data_value"), F.lit(""))
    second = at(get("document"), 1)
    whole = (F.size(get("document")) == 2) & (second[""] == json.LAST_NUMBER) & ~text.contains(json.LAST_NUMBER)
    size = F.octet_length(text)
    before = F.substring(get("data"), size - 1, F.lit(1))
    blanks = [F.lit(blank) for blank in (b" ", b"\n", b"\t", b"\r")]
    first = F.substring(get("data"), F.octet_length(start) + 1, F.lit(1))
    bounds = text.startswith(start) & text.endswith("}") & ~before.isin(*blanks) & ~first.isin(*blanks)
    return (
        whole
        & F.when(get("has_data"), bounds).otherwise(text == start)
        & ~value.contains('Infinity"') & ~value.contains(_REPLACEMENT)
        & (~text.contains("\\u") | ~matches(text, _SURROGATE))
    )


def _event(get: Callable[[str], Column]) -> dict[str, Column]:
    is_structured, plain = get("is_structured"), get("plain")
    start = get("start_found")
    size = F.octet_length(start)
    names = F.when(is_structured, get("extension_keys")).otherwise(F.transform(get("extension_keys"), lambda key: F.substring(key, 4, 1000)))
    data = F.when(get("has_data"), F.substring(get("data"), size + 1, F.length(get("data")) - size - 1)).when(~is_structured & (F.length(get("data")) > 0), get("data"))
    return {
        "extensions": F.when(plain, F.map_from_arrays(names, get("extension_texts"))),
        "event_data": data,
        "mode": F.when(is_structured, F.lit(STRUCTURED)).otherwise(F.lit(BINARY)),
    }
