"""
CloudEvents over a NATS connection, with asyncio and nats-py.

``publish`` and ``subscribe`` send and receive events on core NATS, ``request`` and ``respond`` do request-reply.
``ce_nats.aio.jetstream`` publishes single events to streams and reads streams, a ``Publisher`` pipelines many
publishes, an ``AtomicBatch`` stores events together or not at all, a ``PullConsumer`` consumes. ``connect`` returns a
connection of nats-py; those of ``nats.connect()`` are accepted as well. ``ce_nats.stan`` is a client for NATS
Streaming.
"""

from ..errors import BatchError, DeliveryError, Failure, PublishError, Reject
from . import jetstream
from ._claim_check import ClaimCheck
from ._connect import connect
from ._observer import Instruments, MessageOutcome, Operation, OutcomeKind
from .check_up._durability import Durability
from .consumer._batch import Batch
from .consumer._dead_letters import RequeueResult, requeue, requeue_all
from .consumer._delivery import Delivery
from .consumer._pull_consumer import PullConsumer
from .core._publish import flush, publish
from .core._received import Received
from .core._request import request, respond
from .core._subscribe import Events, events, subscribe
from .publishing._atomic import AtomicBatch
from .publishing._atomic_commit import BatchAck
from .publishing._publisher import Publisher
from .publishing._replay import replay
from .publishing._schedule import Schedule
from .publishing._tally import PublishResult

__all__ = [
    "AtomicBatch",
    "Batch",
    "BatchAck",
    "BatchError",
    "ClaimCheck",
    "Delivery",
    "DeliveryError",
    "Durability",
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
    "Schedule",
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
