"""
Decode captured NATS messages to Arrow columns of CloudEvents, for DuckDB, Polars, pandas and other users of Arrow.

Needs the extra ``arrow`` (``pip install 'ce-nats[arrow]'``), but neither Spark nor a JDK.
"""

try:
    import pyarrow as _pyarrow  # noqa: F401
except ImportError as error:
    raise ImportError("ce_nats.arrow needs pyarrow: pip install 'ce-nats[arrow]'") from error

from ._explode import explode_capture, explode_cloudevents
from ._filter import filter

__all__ = ["explode_capture", "explode_cloudevents", "filter"]
