"""
CloudEvents in Spark: messages to columns and back, and JetStream as a source and a sink.

Needs the extra ``spark`` (``pip install 'ce-nats[spark]'``) and a JDK.
"""

try:
    import pyspark as _pyspark  # noqa: F401
except ImportError as error:
    raise ImportError("ce_nats.spark needs pyspark: pip install 'ce-nats[spark]'") from error

from ._session import register
from .columns._decoding import explode_cloudevents, from_nats
from .columns._encoding import to_nats
from .columns._events import deduplicate, parse_data
from .columns._neighbours import from_iggy, from_stan

__all__ = [
    "deduplicate",
    "explode_cloudevents",
    "from_iggy",
    "from_nats",
    "from_stan",
    "parse_data",
    "register",
    "to_nats",
]
