"""
CloudEvents in Spark: messages to columns and back, and JetStream as a source and a sink.

Needs the extra ``spark`` (``pip install 'ce-nats[spark]'``) and a JDK.
"""

try:
    import pyspark as _pyspark  # noqa: F401
except ImportError as error:
    raise ImportError("ce_nats.spark needs pyspark: pip install 'ce-nats[spark]'") from error

from ._session import register
from .columns._cloudevent import cloudevent
from .columns._decoding import explode_cloudevents, from_nats
from .columns._encoding import to_nats
from .columns._events import deduplicate, parse_data
from .columns._filter import cesql
from .columns._neighbours import from_iggy, from_stan
from .connector._progress import stream_lag

__all__ = [
    "cesql",
    "cloudevent",
    "deduplicate",
    "explode_cloudevents",
    "from_iggy",
    "from_nats",
    "from_stan",
    "parse_data",
    "register",
    "stream_lag",
    "to_nats",
]
