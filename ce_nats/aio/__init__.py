"""
CloudEvents over a NATS connection, with asyncio and nats-py.

``publish`` sends events and ``subscribe`` receives them, ``request`` and ``respond`` do both. ``ce_nats.aio.jetstream``
publishes single events to streams and reads streams, a ``Publisher`` publishes many, a ``PullConsumer`` consumes them.
``ce_nats.stan`` is a client for NATS Streaming. ``connect`` makes connections, which are nats-py's own; those of
``nats.connect()`` are taken as well.
"""

from ..errors import DeliveryError, Failure, PublishError, Reject
from . import jetstream
from ._connect import connect
from ._observer import Instruments, MessageOutcome, Operation, OutcomeKind
from .consumer._dead_letters import RequeueResult, requeue, requeue_all
from .consumer._delivery import Delivery
from .consumer._pull_consumer import PullConsumer
from .core._publish import flush, publish
from .core._received import Received
from .core._request import request, respond
from .core._subscribe import Events, events, subscribe
from .publishing._pending_acks import PublishResult
from .publishing._publisher import Publisher
from .publishing._replay import replay

__all__ = [
    "Delivery",
    "DeliveryError",
    "Events",
    "Failure",
    "Instruments",
    "MessageOutcome",
    "Operation",
    "OutcomeKind",
    "PublishError",
    "PublishResult",
    "Publisher",
    "PullConsumer",
    "Received",
    "Reject",
    "RequeueResult",
    "connect",
    "events",
    "flush",
    "jetstream",
    "publish",
    "replay",
    "request",
    "requeue",
    "requeue_all",
    "respond",
    "subscribe",
]
