"""
What is wrong with the attributes of an event that is to be sent, if anything.

The same rules, in the same order, as ``checked_attributes`` of ce_nats/attributes.py. Most events are right, and that
can be told of all attributes together at a fraction of the cost; the others are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_
from typing import Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql.types import DataType

from ..errors import ErrorCode
from . import media_type, timestamp
from .attributes import ABSOLUTE_URI, PRINTABLE, check, is_name, missing
from .expressions import at, full, let, matches, when_first
from .functions import F
from .schema import ATTRIBUTES, REQUIRED

__all__ = ["Attributes", "error"]

_JSON: Final = "application/json"
_RESERVED: Final = "|".join((*ATTRIBUTES, "data"))
# Names with commas between them, none of which has a meaning of its own; or nothing at all.
_EXTENSIONS: Final = full(rf"(?:(?!(?:{_RESERVED})(?:,|\z))[a-z0-9]++(?:,(?!\z)|\z))*+")
_NULL: Final = "\x00"
_PAIRS: Final = "array<struct<name:string,text:string>>"


class Attributes(NamedTuple):
    """
    The attributes of an event.

    Attributes:
        fields: Canonical strings of those that have a field of their own, by name, in order; NULL is none.
        extensions: The others as a map, or None. A NULL in it is none, where it is that of a specified attribute.
        limits: Types that strings of fields have to be of, where a column can hold more.
    """

    fields: dict[str, Column]
    extensions: Column | None
    limits: dict[str, DataType]


def error(attributes: Attributes) -> Column:
    """The code of the first attribute at fault, or of a missing one; else NULL."""
    if attributes.fields.keys() - set(ATTRIBUTES) or set(REQUIRED) - attributes.fields.keys():
        return _careful(attributes)
    return F.when(~_is_plain(attributes), _careful(attributes))


def _is_plain(attributes: Attributes) -> Column:
    """Whether everything is right; never NULL, and False for some that are right, too."""
    texts = attributes.fields
    rules = [texts["specversion"] == "1.0", *(texts[name] != "" for name in ("id", "source", "type"))]
    optional: dict[str, Callable[[Column], Column]] = {
        "subject": lambda text: text != "",
        "datacontenttype": lambda text: (text == _JSON) | media_type.is_valid(text),
        "dataschema": lambda text: matches(text, ABSOLUTE_URI),
        "time": lambda text: timestamp.parse_plain(text).isNotNull(),
    }
    rules += [texts[name].isNull() | rule(texts[name]) for name, rule in optional.items() if name in texts]
    values = [text for name, text in texts.items() if name not in ("specversion", "time")]
    if attributes.extensions is not None:
        names = F.map_keys(attributes.extensions)
        # from_json makes maps with repeated names.
        is_regular = matches(F.array_join(names, ","), _EXTENSIONS) & (F.size(F.array_distinct(names)) == F.size(names))
        rules.append(attributes.extensions.isNull() | is_regular)
        values.append(F.array_join(F.map_values(attributes.extensions), "", _NULL))
    rules.append(matches(F.concat_ws("", *values), PRINTABLE))
    return F.coalesce(reduce(and_, rules), F.lit(False))


def _careful(attributes: Attributes) -> Column:
    fields = [_pair(F.lit(name), text) for name, text in attributes.fields.items()]
    pairs = F.filter(F.array(*fields).cast(_PAIRS), lambda one: one["text"].isNotNull())
    if attributes.extensions is not None:
        entries = F.transform(
            F.map_entries(attributes.extensions), lambda entry: _pair(entry["key"], entry["value"])
        ).cast(_PAIRS)
        found = F.filter(entries, lambda one: one["text"].isNotNull() | ~one["name"].isin(*ATTRIBUTES))
        pairs = F.concat(pairs, F.coalesce(found, F.array().cast(_PAIRS)))

    def first(pairs: Column) -> Column:
        faults = F.filter(_codes(pairs, attributes.limits), lambda one: one.isNotNull())
        return F.coalesce(at(faults, 0), missing(pairs["name"]))

    return let(pairs, first)


def _pair(name: Column, text: Column) -> Column:
    return F.struct(name.alias("name"), text.alias("text"))


def _codes(pairs: Column, limits: dict[str, DataType]) -> Column:
    """The code of each attribute, NULL for those that are right."""

    def checked(one: Column, place: Column) -> Column:
        name, text = one["name"], one["text"]
        broken = when_first(
            (~is_name(name), ErrorCode.INVALID_ATTRIBUTE_NAME),
            (F.array_position(pairs["name"], name) - 1 < place, ErrorCode.DUPLICATE_ATTRIBUTE),
            (text.isNull(), ErrorCode.INVALID_ATTRIBUTE_TYPE),
            (~F.is_valid_utf8(text), ErrorCode.INVALID_CHARACTER),
        )
        return F.coalesce(broken, check(name, text, limits))

    return F.transform(pairs, checked)
