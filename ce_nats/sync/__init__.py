"""
CloudEvents over NATS for programs without asyncio: scripts, Django, notebooks.

    with sync.connect("nats://127.0.0.1:4222") as nc:
        nc.publish(event, "orders.paid")

Calls are those of ``ce_nats.aio`` without ``await``, with the same options, results and errors. One event loop per
process, in a separate thread, runs ``ce_nats.aio``. Any thread may call, also one in which an event loop runs, as in
Jupyter. After a fork, connections and publishers work in the child as well: each opens a new connection there.
Subscriptions and consumers stay with the parent.

Functions that are passed as options (``on_error``, callbacks of a connection) are called in the loop's thread, and must
not call this module. When the program ends, open objects are closed: waiting events are sent, for at most five seconds,
and an error is logged for those that could not be sent.

Needs the extra ``sync`` (``pip install 'ce-nats[sync]'``).
"""

from ..aio import Durability, Schedule
from ..errors import BatchError, DeliveryError, Failure, PublishError, Reject
from ._atomic import AtomicBatch
from ._batch import Batch
from ._claim_check import ClaimCheck
from ._connection import Connection, connect
from ._consumer import PullConsumer
from ._delivery import Delivery
from ._publisher import Publisher
from ._subscription import Subscription

__all__ = [
    "AtomicBatch",
    "Batch",
    "BatchError",
    "ClaimCheck",
    "Connection",
    "Delivery",
    "DeliveryError",
    "Durability",
    "Failure",
    "PublishError",
    "Publisher",
    "PullConsumer",
    "Reject",
    "Schedule",
    "Subscription",
    "check_stream",
    "configure_consumer",
    "configure_stream",
    "connect",
    "flush",
    "publish",
    "publish_to_stream",
    "read_stream",
    "replay",
    "request",
    "requeue",
    "requeue_all",
    "respond",
    "subscribe",
]

# As in ce_nats.aio: functions whose first argument is a connection.
publish = Connection.publish
publish_to_stream = Connection.publish_to_stream
flush = Connection.flush
request = Connection.request
respond = Connection.respond
subscribe = Connection.subscribe
read_stream = Connection.read_stream
check_stream = Connection.check_stream
configure_consumer = Connection.configure_consumer
configure_stream = Connection.configure_stream
replay = Connection.replay
requeue = Connection.requeue
requeue_all = Connection.requeue_all
