"""Names of columns: quoting, and lookup in a DataFrame."""

from __future__ import annotations

from collections.abc import Container

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812


def quoted(name: str) -> str:
    """Return a column name for ``F.col``, which would otherwise read dots and backticks in it as syntax."""
    return "`" + name.replace("`", "``") + "`"


def column_of(names: Container[str], name: Column | str) -> Column:
    """
    Return a column by name; a column unchanged.

    A column with exactly this name has precedence. Otherwise the name is resolved as by ``F.col``: in any case, and
    with dots for the fields of a struct.
    """
    if not isinstance(name, str):
        return name
    return F.col(quoted(name) if name in names else name)
