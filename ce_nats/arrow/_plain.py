"""
Other layouts of the same values: dictionaries, views, lists and bytes of a fixed size, runs, and extension types.

DuckDB, Polars and Parquet have columns in them that others have in plain ones, such as text of type JSON. A layout is
converted when its values are needed, so nested ones are converted level by level.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of :func:`plain`, as far as its outermost level is concerned."""
    types: Any = pa.types
    if _is_extension(kind):
        return plain_type(kind.storage_type)
    if types.is_dictionary(kind) or _is(kind, "is_run_end_encoded"):
        return plain_type(kind.value_type)
    if types.is_fixed_size_binary(kind) or _is(kind, "is_binary_view"):
        return pa.binary()
    if _is(kind, "is_string_view"):
        return pa.string()
    return pa.large_list(kind.value_field) if _is_other_list(kind) else kind


def plain(array: pa.Array) -> pa.Array:
    """Return the values of an array in the plain layout, as far as its outermost level is concerned."""
    kind = array.type
    if _is_extension(kind):
        return plain(array.storage)
    if pa.types.is_dictionary(kind):
        return plain(array.dictionary).take(array.indices)
    if _is(kind, "is_run_end_encoded"):
        return plain(pc.run_end_decode(array))
    if _is_other_list(kind):
        return _as_list(array)
    target = plain_type(kind)
    return array if target is kind else array.cast(target)


def _as_list(array: pa.Array) -> pa.Array:
    """Return lists with offsets. Casts of pyarrow do not know all layouts, or make invalid arrays of them."""
    ends = pc.cumulative_sum(pc.list_value_length(array).fill_null(0).cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    return pa.LargeListArray.from_arrays(offsets, array.flatten(), mask=array.is_null())


def _is_extension(kind: pa.DataType) -> bool:
    """Return whether a type has the values of its storage: not an opaque one, such as DuckDB's HUGEINT in 16 bytes."""
    opaque = getattr(pa, "OpaqueType", ())
    return isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, opaque)


def _is_other_list(kind: pa.DataType) -> bool:
    is_view = _is(kind, "is_list_view") or _is(kind, "is_large_list_view")
    return is_view or bool(pa.types.is_fixed_size_list(kind))


def _is(kind: pa.DataType, name: str) -> bool:
    """Return whether a type is of a kind that old versions of pyarrow do not have."""
    check = getattr(pa.types, name, None)
    return check is not None and bool(check(kind))
