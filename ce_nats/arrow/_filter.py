"""Filter columns of events by expressions of CloudEvents SQL."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from .. import cesql
from ..cesql._columns import NOT_ATTRIBUTES, UntranslatableError, translated
from ..cesql._functions import WHITESPACE
from ..cesql._syntax import Attribute, walk
from ..codec.attributes import CORE

_Batch = TypeVar("_Batch", pa.Table, pa.RecordBatch)

_COMPARISONS: Final = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_CALCULATIONS: Final = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide}
_TYPES: Final = {bool: pa.bool_(), int: pa.int64(), str: pa.string()}


def filter(data: _Batch, expression: str | cesql.Expression, *, prefix: str = "ce_") -> _Batch:
    """
    Return the rows whose events pass an expression of CloudEvents SQL.

        gold = arrow.filter(explode_cloudevents(messages), "tier = 'gold' AND priority > 3")

    The same rows pass as events do with :meth:`ce_nats.cesql.Expression.matches`, except that extensions without a
    separate column are strings, as those of messages in binary mode. A row that is not an event does not pass. The
    expression becomes functions of Arrow, unless it has functions of the program, or counts of LEFT, RIGHT and
    SUBSTRING that are not constants: then each row is evaluated, which is slow. LOWER and UPPER change each character
    by itself.

    Args:
        data: A table or batch with the columns of ``explode_cloudevents``.
        expression: The expression, or its text.
        prefix: Prefix of these columns.

    Raises:
        ParseError: ``expression`` is not an expression.
        ValueError: It reads an attribute without a column, or ``time``, whose column does not have the text of the
            event.
        TypeError: ``data`` is neither a table nor a batch.
    """
    found = cesql.compile(expression)
    if isinstance(data, pa.Table):
        batches = [filter(batch, found, prefix=prefix) for batch in data.to_batches()]
        return pa.Table.from_batches(batches, schema=data.schema)
    if not isinstance(data, pa.RecordBatch):
        raise TypeError(f"data must be a table or a batch of Arrow, got {type(data).__name__}")
    return data.filter(passing(data, found, prefix))


def passing(data: pa.RecordBatch, found: cesql.Expression, prefix: str) -> pa.BooleanArray:
    """
    Return which events pass, with false or NULL for others.

    Raises:
        ValueError: As :func:`filter`.
    """
    columns = _Columns(data, prefix)
    try:
        passes = translated(found._tree, columns)
    except UntranslatableError:
        read = {part.name for part in walk(found._tree) if isinstance(part, Attribute)}
        some, none = columns.literal("1"), columns.literal(None)
        arrays = {
            name: columns.attribute(name)[0] if name in read else columns.choose(columns.exists(name), some, none)
            for name in found.attributes
        }
        values = {name: array.to_pylist() for name, array in arrays.items()}
        events = ({name: column[row] for name, column in values.items()} for row in range(data.num_rows))
        passes = pa.array([found.matches(event) for event in events], pa.bool_())
    if isinstance(passes, pa.Scalar):
        passes = pa.repeat(passes, data.num_rows)
    return pc.and_(passes, columns.exists("id"))


class _Columns:
    """The columns of a batch; values are arrays, or scalars that are the same in each row."""

    def __init__(self, data: pa.RecordBatch, prefix: str) -> None:
        self._data = data
        self._prefix = prefix

    def literal(self, value: Any) -> Any:
        return pa.scalar(value, _TYPES[bool if value is None else type(value)])

    def attribute(self, name: str) -> tuple[Any, type]:
        values = self._column(name)
        if pa.types.is_boolean(values.type):
            return values, bool
        if pa.types.is_integer(values.type):
            return values.cast(pa.int64()), int
        if name == "time" and not pa.types.is_string(values.type):
            raise ValueError(f"column {self._prefix}time does not have the text of the attribute: compare the column")
        return values.cast(pa.string()), str

    def exists(self, name: str) -> Any:
        return pc.is_valid(self._column(name))

    def _column(self, name: str) -> Any:
        """Return the column of an attribute, or its values in the map of extensions."""
        schema, column = self._data.schema, self._prefix + name
        if column in schema.names and (
            name in CORE or (name not in NOT_ATTRIBUTES and _is_value(schema.field(column).type))
        ):
            return self._data.column(column)
        needed = column if name in CORE else self._prefix + "extensions"
        if name in CORE or needed not in schema.names:
            raise ValueError(f"attribute {name} needs the column {needed}")
        return pc.map_lookup(self._data.column(needed), name, "first")

    def is_valid(self, value: Any) -> Any:
        return pc.is_valid(value)

    def choose(self, condition: Any, yes: Any, no: Any) -> Any:
        # A NULL has the type of the other value, if it has none by itself.
        kind = next(
            (one.type for one in (yes, no) if not _is_null(one)), yes.type if yes.type != pa.bool_() else no.type
        )
        yes, no = (pa.scalar(None, kind) if _is_null(one) else one for one in (yes, no))
        return pc.if_else(condition, yes, no)

    def both(self, one: Any, other: Any) -> Any:
        return pc.and_(one, other)

    def invert(self, value: Any) -> Any:
        return pc.invert(value)

    def compare(self, operator: str, left: Any, right: Any) -> Any:
        if left.type != right.type:  # one is a NULL without a type
            return pa.scalar(None, pa.bool_())
        return _COMPARISONS[operator](left, right)

    def calculate(self, operator: str, left: Any, right: Any) -> Any:
        if operator in "/%":
            right = self.choose(pc.equal(right, 0), self.literal(None), right)
        if operator == "%":
            result = pc.subtract(left, pc.multiply(pc.divide(left, right), right))
        else:
            result = _CALCULATIONS[operator](left, right)
        return pc.cast(pc.cast(result, pa.int32(), safe=False), pa.int64())

    def cast(self, value: Any, source: type, target: type) -> Any:
        if _is_null(value):
            return pa.scalar(None, _TYPES[target])
        if source is not str or target is str:
            return pc.cast(value, _TYPES[target])
        null = self.literal(None)
        if target is bool:
            lower = pc.utf8_lower(value)
            is_false = self.choose(pc.equal(lower, "false"), self.literal(False), null)
            return self.choose(pc.equal(lower, "true"), self.literal(True), is_false)
        is_number = pc.match_substring_regex(value, r"\A[+-]?0*[0-9]{1,10}\z")
        digits = pc.replace_substring_regex(self.choose(is_number, value, null), r"\A\+?(-?)0*([0-9])", r"\1\2")
        number = pc.cast(digits, pa.int64())
        is_small = pc.and_(pc.greater_equal(number, -(2**31)), pc.less(number, 2**31))
        return self.choose(is_small, number, null)

    def like(self, value: Any, tokens: list[str]) -> Any:
        parts = {"%": ".*", "_": "."}
        pattern = "".join(parts.get(token) or _escaped(token[-1]) for token in tokens)
        return pc.match_substring_regex(value, rf"(?s)\A{pattern}\z")

    def contains(self, values: list[Any], value: Any) -> Any:
        if _is_null(value):
            return self.literal(None)
        found = pc.is_in(value, value_set=pa.array(values, value.type))
        return self.choose(pc.is_valid(value), found, self.literal(None))

    def call(self, name: str, arguments: list[Any]) -> Any:
        if any(map(_is_null, arguments)):
            return pa.scalar(None, pa.int64() if name in ("LENGTH", "ABS") else pa.string())
        if name in ("LEFT", "RIGHT", "SUBSTRING"):
            text, *rest = arguments
            if not all(isinstance(value, pa.Scalar) for value in rest):
                raise UntranslatableError(f"{name} needs constants")
            counts = [value.as_py() for value in rest]
            return self._substring(text, *counts) if name == "SUBSTRING" else self._end(text, name, *counts)
        if name in ("CONCAT", "CONCAT_WS"):
            *texts, delimiter = [*arguments, self.literal("")] if name == "CONCAT" else [*arguments[1:], arguments[0]]
            return pc.binary_join_element_wise(*texts, delimiter) if texts else pc.utf8_slice_codeunits(delimiter, 0, 0)
        (value,) = arguments
        if name == "LENGTH":
            return pc.cast(pc.utf8_length(value), pa.int64())
        if name == "ABS":
            return self.choose(pc.equal(value, -(2**31)), self.literal(None), pc.abs(value))
        if name == "TRIM":
            return pc.utf8_trim(value, characters=WHITESPACE)
        return pc.utf8_lower(value) if name == "LOWER" else pc.utf8_upper(value)

    def _end(self, text: Any, name: str, count: int) -> Any:
        if count < 0:
            return pa.scalar(None, pa.string())
        if name == "LEFT" or count == 0:
            return pc.utf8_slice_codeunits(text, 0, count)
        return pc.utf8_slice_codeunits(text, -count)

    def _substring(self, text: Any, position: int, length: int | None = None) -> Any:
        if position == 0:
            return pc.utf8_slice_codeunits(text, 0, 0)
        if length is not None and length < 0:
            return pa.scalar(None, pa.string())
        start = position - 1 if position > 0 else position
        # From the end, a stop of 0 would be the beginning.
        stop = None if length is None or (position < 0 <= start + length) else start + length
        found = pc.utf8_slice_codeunits(text, start, stop)
        return self.choose(pc.greater_equal(pc.utf8_length(text), abs(position)), found, self.literal(None))


def _is_null(value: Any) -> bool:
    return isinstance(value, pa.Scalar) and not value.is_valid


def _is_value(kind: pa.DataType) -> bool:
    """Whether a column of an extension has its values; otherwise their texts are in the map."""
    return pa.types.is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind)  # type: ignore[no-any-return]


def _escaped(character: str) -> str:
    """Return a character for a regular expression of RE2."""
    return rf"\x{{{ord(character):x}}}"
