"""
CloudEvents over NATS for programs without asyncio: scripts, Django, notebooks.

    with sync.connect("nats://127.0.0.1:4222") as nc:
        nc.publish(event, "orders.paid")

One event loop per process, in a thread of its own, runs ``ce_nats.aio``; the calls are those of ``aio`` without
``await``, with the same options, results and errors. They may come from any thread, also from one in which an event
loop runs, as in Jupyter. After a fork, connections and publishers work in the child as well, where each one makes a
connection of its own; subscriptions stay with the parent.

Functions that are given as options (``on_error``, the callbacks of a connection) are called in the loop's thread, and
must not call anything of this module. What is still open when the program ends is closed: what waits is sent, for five
seconds at most, and an error is logged for what could not be.

Needs the extra ``sync`` (``pip install 'ce-nats[sync]'``).
"""

from ..errors import DeliveryError, Failure, PublishError, Reject
from ._connection import Connection, connect
from ._publisher import Publisher
from ._receiving import Delivery, PullConsumer, Subscription

__all__ = [
    "Connection",
    "Delivery",
    "DeliveryError",
    "Failure",
    "PublishError",
    "Publisher",
    "PullConsumer",
    "Reject",
    "Subscription",
    "connect",
    "flush",
    "publish",
    "publish_to_stream",
    "request",
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
