"""
Build event structs from columns of a table.

The types of columns are not known before Spark analyses the query, and analysing is neither possible in a declarative
pipeline nor cheap with Spark Connect. So the expressions depend on ``typeof()``, which Spark evaluates when it
optimizes the query: only the branch of the actual type is executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from ...codec.attributes import check_extension_name
from ...errors import EncodeError, preview
from ._json import json_text

_SPECVERSION: Final = "1.0"
# Characters of sources, schemas and media types that names of columns rarely have.
_OF_LITERALS: Final = "/:"
_TEXT_TYPES: Final = "^(string|char|varchar)"


def cloudevent(
    *,
    id: Column | str,  # noqa: A002
    source: Column | str,
    type: Column | str,  # noqa: A002
    data: Column | str | None = None,
    subject: Column | str | None = None,
    time: Column | str | None = None,
    datacontenttype: Column | str | None = None,
    dataschema: Column | str | None = None,
    extensions: Mapping[str, Column | str] | Column | str | None = None,
) -> Column:
    """
    Return an event made from columns, as a struct that ``format("nats")`` writes and :func:`to_nats` accepts.

        event = cloudevent(id="order_id", source=F.lit("/shop"), type=F.lit("paid"), data="order")
        orders.select(F.lit("orders.paid").alias("subject"), event.alias("event")).write.format("nats")...

    As in the functions of PySpark, each argument is a column or the name of one: ``F.lit("/shop")`` is a literal,
    ``"/shop"`` is not. A NULL is an attribute that the event does not have. ``specversion`` is 1.0. Nothing is
    generated: derive the id from the row, so that a retried task writes the same events and not new ones.

    The function does not analyse columns, so it can be used with Spark Connect and in declarative pipelines. The types
    are checked by the sink when the query starts, and by :func:`to_nats` when it runs; so are values.

    Args:
        id: Id, STRING, unique within the source. Cast numbers: ``F.col("order_id").cast("string")``.
        source: Source, STRING, a URI-reference.
        type: Type, STRING.
        data: Data. STRING is text; if ``datacontenttype`` is JSON or NULL, it is JSON text and is sent verbatim.
            BINARY is sent unchanged. A struct, an array, a map, a VARIANT or a value of any other type is written as
            JSON by ``to_json()``: a TIMESTAMP in RFC 3339 in UTC, with microseconds, and no NULL fields of structs;
            ``F.to_json(data, {"ignoreNullFields": "false"})`` as STRING keeps them. NaN, Infinity and two fields of the
            same name are ``invalid-data``. NULL means no data.
        subject: Attribute ``subject``, STRING. It is not the NATS subject, which is a column or an option of the sink.
        time: Time, TIMESTAMP, or STRING in RFC 3339.
        datacontenttype: Media type of the data, STRING. If it is NULL, ``application/json`` is added to the event,
            except for BINARY data.
        dataschema: Schema of the data, STRING, a URI.
        extensions: Extension attributes. A mapping of names to columns or their names keeps types: STRING, BOOLEAN,
            integers of 32 bits, BINARY and TIMESTAMP. A column or its name is a map of strings to strings.

    Raises:
        TypeError: An argument is neither a column nor a str.
        ValueError: A name of a column has a slash or a colon, so that it is rather a literal; or, as an EncodeError,
            the name of an extension is not valid.
    """
    null = F.lit(None)
    optional = {"subject": subject, "time": time, "datacontenttype": datacontenttype, "dataschema": dataschema}
    attributes = {"specversion": F.lit(_SPECVERSION)}
    for name, given in {"id": id, "source": source, "type": type}.items():
        attributes[name] = _column(name, given)
    for name, wanted in optional.items():
        kind = "timestamp" if name == "time" else "string"
        attributes[name] = null.cast(kind) if wanted is None else _column(name, wanted)
    fields = []
    if isinstance(extensions, Mapping):
        attributes |= {name: _extension(name, given) for name, given in extensions.items()}
    elif extensions is not None:
        fields.append(_column("extensions", extensions).alias("extensions"))
    fields += _data_fields(null if data is None else _column("data", data))
    return F.struct(F.struct(*(column.alias(name) for name, column in attributes.items())).alias("attributes"), *fields)


def _extension(name: object, given: Column | str) -> Column:
    check_extension_name(name, EncodeError)
    return _column(f"extension {name}", given)


def _data_fields(data: Column) -> list[Column]:
    kind = F.typeof(data)
    is_binary, is_text = kind == "binary", kind.rlike(_TEXT_TYPES)
    text = data.cast("string")
    return [
        # Every type can be cast to STRING, as the types of unused branches are checked as well. It keeps the bytes.
        F.when(is_binary, text.cast("binary")).alias("data"),
        F.when(is_text, text).when(~is_binary & data.isNotNull(), json_text(data)).alias("data_text"),
        (~is_binary & ~is_text).alias("is_json"),
    ]


def _column(name: str, given: object) -> Column:
    """
    Return the column of an argument.

    Raises:
        TypeError: It is neither a column nor a str.
        ValueError: It is rather a literal than the name of a column.
    """
    if isinstance(given, Column):
        return given
    found = preview(given)
    reason = f"{name} must be a column or the name of a column, got {found}; a literal is F.lit({found})"
    if not isinstance(given, str):
        raise TypeError(reason)
    if any(char in given for char in _OF_LITERALS):
        raise ValueError(f"{reason}, a column with such a name F.col({found})")
    return F.col(given)
