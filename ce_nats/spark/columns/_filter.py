"""Expressions of CloudEvents SQL as columns of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BooleanType

from ... import cesql as language
from ...arrow._explode import extension_types
from ...arrow._filter import passing
from ...cesql._columns import NOT_ATTRIBUTES, UntranslatableError, translated
from ...cesql._evaluate import COMPARISONS
from ...cesql._functions import WHITESPACE
from ...cesql._syntax import Literal, Node, walk
from ...codec.attributes import CORE
from ._arrow_functions import arrow_function
from ._schema import check_event

# Levels and parts of an expression: a column repeats some of its parts, twice for each level, and Spark is recursive.
_MAX_LEVELS: Final = 12
_MAX_PARTS: Final = 1000  # that are not constants

_TYPES: Final = {bool: "boolean", int: "bigint", str: "string"}


def cesql(
    expression: str | language.Expression, *, prefix: str = "ce_", extensions: Mapping[str, str] | None = None
) -> Column:
    """
    Return the condition that an event passes an expression of CloudEvents SQL.

        explode_cloudevents(messages).filter(cesql("source LIKE '/eu/%' AND tier = 'gold'"))

    It is true for the rows whose events pass, as with :meth:`ce_nats.cesql.Expression.matches`, and false or NULL for
    others, also those that are not events. It consists of Spark's expressions, which the optimizer knows. Extensions
    without a separate column are strings, as those of messages in binary mode.

    Args:
        expression: The expression, or its text.
        prefix: Prefix of the columns of :func:`explode_cloudevents`.
        extensions: Extensions with a separate column, as for :func:`explode_cloudevents`.

    Raises:
        ParseError: ``expression`` is not an expression.
        ValueError: It has functions of the program; more than 1,000 parts that are not constants, 12 levels, or 200
            parts in a chain of AND, OR and XOR; or it reads ``time``, whose column does not have the text of the event.
            A type or a name in ``extensions`` is not valid.
        TypeError: ``extensions`` is not a mapping.
    """
    tree = language.compile(expression)._tree
    if _levels(tree) > _MAX_LEVELS or sum(not isinstance(part, Literal) for part in walk(tree)) > _MAX_PARTS:
        raise UntranslatableError(f"a column must have at most {_MAX_LEVELS} levels and {_MAX_PARTS} parts")
    columns = _Columns(prefix, extensions)
    return columns.exists("id") & translated(tree, columns)


def _levels(node: Node) -> int:
    return 1 + max(map(_levels, node.children), default=0)


def register(spark: SparkSession) -> None:
    """
    Register ``cesql(event, expression)`` for Spark SQL, as a temporary function.

    Raises:
        ImportError: pyspark is older than 4.1, or workers on this machine run a Python that cannot import ce_nats.
    """
    spark.udf.register("cesql", arrow_function(_passes, BooleanType(), "cesql in Spark SQL"))


def _passes(events: pa.Array, expressions: pa.Array) -> pa.Array:
    """Return whether events pass, each its own expression; NULL if that is NULL."""
    check_event(from_arrow_type(events.type))
    batch = _columns_of(events)
    result = pa.nulls(len(events), pa.bool_())
    for text in expressions.unique().drop_null().to_pylist():
        is_this = pc.equal(expressions, text).fill_null(False)
        expression = language.compile(text)
        for name in {*expression.attributes}.intersection(events.type.field("attributes").type.names):
            if pa.types.is_binary(kind := batch.schema.field(name).type) or pa.types.is_timestamp(kind):
                text = f"attribute {name} for cesql must be a string, an integer or a boolean, got {kind}"
                raise TypeError(f"{text}; use cast('string')")
        some = passing(batch.filter(is_this), expression, "")
        result = pc.replace_with_mask(result, is_this, some.fill_null(False))
    return result


def _columns_of(events: pa.StructArray) -> pa.RecordBatch:
    """Return the columns of events, named as by ``explode_cloudevents`` without a prefix, with the text of times."""
    fields = dict(zip(events.type.names, events.flatten()))
    attributes = fields["attributes"]
    nothing = pa.nulls(len(events))
    columns = {**dict.fromkeys(CORE, nothing), **dict(zip(attributes.type.names, attributes.flatten()))}
    columns["time"] = columns.pop("time_text", columns["time"])
    texts = {name: column.cast(pa.string()) for name, column in columns.items() if pa.types.is_null(column.type)}
    extensions = fields.get("extensions", nothing).cast(pa.map_(pa.string(), pa.string()))
    return pa.RecordBatch.from_pydict({**columns, **texts, "extensions": extensions})


class _Columns:
    """Operations on columns of Spark."""

    def __init__(self, prefix: str, extensions: Mapping[str, str] | None) -> None:
        self._prefix = prefix
        self._types = {name: kind for name, kind in extension_types(extensions).items() if kind in _TYPES}

    def literal(self, value: Any) -> Column:
        return F.lit(value) if value is None else F.lit(value).cast(_TYPES[type(value)])

    def attribute(self, name: str) -> tuple[Column, type]:
        if name == "time":
            raise ValueError(f"column {self._prefix}time does not have the text of the attribute: compare the column")
        kind = self._types.get(name, str)
        column = self._column(name)
        return column.cast("bigint") if kind is int else column, kind

    def exists(self, name: str) -> Column:
        return self._column(name).isNotNull()

    def _column(self, name: str) -> Column:
        if name in CORE or (name in self._types and name not in NOT_ATTRIBUTES):
            return F.col(f"`{self._prefix}{name}`")
        return F.try_element_at(F.col(f"`{self._prefix}extensions`"), F.lit(name))

    def is_valid(self, value: Column) -> Column:
        return value.isNotNull()

    def choose(self, condition: Column, yes: Column, no: Column) -> Column:
        return F.when(condition, yes).when(~condition.cast("boolean"), no)

    def both(self, one: Column, other: Column) -> Column:
        return one & other

    def invert(self, value: Column) -> Column:
        return ~value.cast("boolean")

    def compare(self, operator: str, left: Column, right: Column) -> Column:
        return left == right if operator == "=" else COMPARISONS[operator](left, right)  # type: ignore[return-value]

    def calculate(self, operator: str, left: Column, right: Column) -> Column:
        if operator == "/":
            # Of integers of 32 bits, so that the quotient is exact when it is truncated.
            result = (left / F.when(right != 0, right)).cast("bigint")
        elif operator == "%":
            result = left % F.when(right != 0, right)
        else:
            result = left + right if operator == "+" else left - right if operator == "-" else left * right
        return (result + 2**31).bitwiseAND(F.lit(2**32 - 1)) - 2**31

    def cast(self, value: Column, source: type, target: type) -> Column:
        if source is not str:
            return value != 0 if (source, target) == (int, bool) else value.cast(_TYPES[target])
        if target is bool:
            lower = F.lower(value)
            return F.when(lower == "true", True).when(lower == "false", False)
        return F.when(value.rlike(r"\A[+-]?0*[0-9]{1,10}\z"), value.try_cast("int")).cast("bigint")

    def like(self, value: Column, tokens: list[str]) -> Column:
        escaped = {r"\%": r"\%", r"\_": r"\_", "\\\\": r"\\"}
        return value.like("".join(escaped.get(token, token[-1]) for token in tokens))

    def contains(self, values: list[Any], value: Column) -> Column:
        return value.isin(values)

    def call(self, name: str, arguments: list[Column]) -> Column:
        if name == "CONCAT":
            return F.concat(*arguments, F.lit(""))
        first, *rest = arguments
        if name == "CONCAT_WS":  # that of Spark ignores NULL
            joined = [part for text in rest for part in (first, text)][1:]
            return F.concat(*joined) if rest else F.when(first.isNotNull(), "")
        if name in ("LEFT", "RIGHT"):
            count = rest[0].cast("int")
            found = F.left(first, count) if name == "LEFT" else F.right(first, count)
            return F.when(count >= 0, found)
        if name == "SUBSTRING":
            return self._substring(first, *(value.cast("int") for value in rest))
        if name == "ABS":
            return F.when(first != -(2**31), F.abs(first))
        if name == "LENGTH":
            return F.length(first).cast("bigint")
        if name == "TRIM":
            return F.btrim(first, F.lit(WHITESPACE))
        return F.lower(first) if name == "LOWER" else F.upper(first)

    def _substring(self, text: Column, position: Column, length: Column | None = None) -> Column:
        found = F.substr(text, position, F.length(text) if length is None else length)
        fits = (F.abs(position.cast("bigint")) <= F.length(text)) & (length.isNotNull() if length is not None else True)
        if length is not None:
            fits = fits & (length >= 0)
        return F.when(text.isNotNull() & (position == 0), "").when(fits, found)
