"""
Binary content mode as columns: one ``ce-`` header per attribute, the data as payload.

NATS binding, section 3.1; the same rules as ce_nats/binary.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql.types import DataType

from ..errors import ErrorCode
from . import percent
from .attributes import check, event, fault, is_name, missing
from .expressions import at, let, when_first
from .functions import F
from .mode import BINARY, PREFIX

__all__ = ["decode"]

_AFTER_PREFIX: Final = len(PREFIX) + 1
_TO_END: Final = 2**31 - 1


def decode(names: Column, values: Column, payload: Column, types: Mapping[str, DataType]) -> Column:
    """
    The event in ``ce-`` headers and a payload, or its first fault in wire order.

    Args:
        names: Header names in wire order, ASCII letters in lower case.
        values: Header values, likewise.
        payload: Bytes, or NULL for none.
        types: What extensions are declared as.
    """
    pairs = F.transform(names, lambda name, place: F.struct(name.alias("header"), at(values, place).alias("value")))
    attributes = F.transform(
        F.filter(pairs, lambda pair: pair["header"].startswith(PREFIX)),
        lambda pair: F.struct(
            F.substring(pair["header"], F.lit(_AFTER_PREFIX), F.lit(_TO_END)).alias("name"),
            pair["value"].alias("value"),
        ),
    )
    return let(attributes, lambda found: let(_decoded(found, types), lambda decoded: _event(decoded, payload)))


def _decoded(found: Column, types: Mapping[str, DataType]) -> Column:
    """The attributes as structs of ``name``, ``text`` and ``code``."""

    def decoded(attribute: Column, place: Column) -> Column:
        name = attribute["name"]
        error = when_first(
            (~is_name(name), ErrorCode.INVALID_ATTRIBUTE_NAME),
            (F.array_position(found["name"], name) - 1 < place, ErrorCode.DUPLICATE_ATTRIBUTE),
        )
        # 3.1.3.2: "terminated by a CRLF sequence with OPTIONAL whitespace around the header value"
        value = F.btrim(attribute["value"], F.lit(" \t"))
        return let(
            percent.decode(value),
            lambda text: F.struct(
                name.alias("name"),
                text["text"].alias("text"),
                F.coalesce(error, text["code"], check(name, text["text"], types)).alias("code"),
            ),
        )

    return F.transform(found, decoded)


def _event(attributes: Column, payload: Column) -> Column:
    faults = F.filter(attributes["code"], lambda one: one.isNotNull())
    return let(
        F.coalesce(at(faults, 0), missing(attributes["name"])),
        lambda error: F.when(error.isNotNull(), fault(error)).otherwise(event(attributes, payload, BINARY)),
    )
