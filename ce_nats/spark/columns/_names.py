"""Names of columns: quotes, and look-up in a DataFrame."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812


def quoted(name: str) -> str:
    """Return a column name for ``F.col``, which would otherwise read dots and backticks in it as syntax."""
    return "`" + name.replace("`", "``") + "`"


def column_of(df: DataFrame, name: str) -> Column:
    """
    Return the column that a caller named.

    A column with exactly this name comes first. Otherwise the name is read as by ``F.col``: in any case, and with dots
    for the fields of a struct.
    """
    return F.col(quoted(name) if name in df.columns else name)
