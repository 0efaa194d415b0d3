"""
CloudEvents over a NATS connection, with asyncio and nats-py.

``publish`` sends events and ``subscribe`` receives them, ``request`` and ``respond`` do both. ``ce_nats.aio.jetstream``
publishes single events to streams and reads streams, a ``Publisher`` publishes many, a ``PullConsumer`` consumes them.
``ce_nats.stan`` is a client for NATS Streaming. ``connect`` makes connections, which are nats-py's own; those of
``nats.connect()`` are taken as well.
"""

from ..errors import DeliveryError, Failure, PublishError, Reject
from . import jetstream
from .connect import connect
from .consume import Events, events, subscribe
from .delivery import Delivery
from .outcomes import MessageOutcome, OutcomeKind
from .publish import flush, publish
from .publisher import Publisher
from .pull import PullConsumer
from .received import Received
from .request import request, respond

__all__ = [
    "Delivery",
    "DeliveryError",
    "Events",
    "Failure",
    "MessageOutcome",
    "OutcomeKind",
    "PublishError",
    "Publisher",
    "PullConsumer",
    "Received",
    "Reject",
    "connect",
    "events",
    "flush",
    "jetstream",
    "publish",
    "request",
    "respond",
    "subscribe",
]
