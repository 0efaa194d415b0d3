"""
CloudEvents over a NATS connection, with asyncio and nats-py.

``publish`` sends events and ``subscribe`` receives them; ``ce_nats.aio.jetstream`` publishes to streams and reads them,
and ``PullConsumer`` consumes them.
Connections are nats-py's own: what ``await nats.connect()`` gives.
"""

from ..errors import DeliveryError
from . import jetstream
from .consume import Events, Received, events, subscribe
from .publish import flush, publish
from .pull import Delivery, PullConsumer, Reject

__all__ = [
    "Delivery",
    "DeliveryError",
    "Events",
    "PullConsumer",
    "Received",
    "Reject",
    "events",
    "flush",
    "jetstream",
    "publish",
    "subscribe",
]
