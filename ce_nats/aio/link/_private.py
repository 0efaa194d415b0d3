"""
The private names of nats-py that this folder uses, and access to them.

If a version of nats-py lacks one, the first use raises a :class:`~ce_nats.CeNatsError` with the version and the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from ...errors import CeNatsError, ErrorCode

# What nats-py has no public name for, by class.
NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "JetStreamContext": {
        "_nc": "the connection",
        "_prefix": "first tokens of the subjects of JetStream's API",
        "_timeout": "timeout of a request",
    },
    "Msg": {
        "_client": "the connection",
        "_ackd": "whether the message was settled",
    },
    "Client": {
        # Written bytes
        "_pending": "the buffer: frames that were encoded elsewhere",
        "_pending_data_size": "its size",
        "_max_pending_size": "its limit",
        "_flush_queue": "wakes the task that sends the buffer",
        "_flush_pending": "waits until it is sent",
        # Received bytes
        "_ps": "the parser: raw messages are taken out before it",
        "_subs": "subscriptions by number",
        "_send_unsubscribe": "unsubscribes without forgetting what was sent before",
        "_sid": "number of the latest subscription, whose first message arrives before it is returned",
        "_reading_task": "the read loop: if it ends, nothing arrives any more",
        "_build_message": "subjects that are not UTF-8 would end the read loop",
        "_process_headers": "malformed headers would end the read loop",
        "_parse_header_lines": "headers as nats-py reads them",
        "_process_pong": "a PONG would end the read loop if its flush() was cancelled",
        "_pongs": "those that are awaited",
        # State
        "_server_info": "whether the server has headers and JetStream, and its version",
        "_resp_sub_prefix": "the inbox for responses, which may be denied",
        "_error_cb": "errors that no operation raises, a denied permission among them",
        "_reconnected_cb": "errors before a reconnect are of the past",
        "_closed_cb": "operations fail when the connection is closed",
        "_close": "what waits is written before the connection is closed",
        "_err": "why the connection was closed",
        # Connecting
        "_transport": "one that writes nothing without TLS",
        "_connect_to_server": "the transport is chosen for each server",
        "_process_info": "a server that offers TLS is taken to require it",
        "_process_err": "a violation of max_payload, after which nats-py does not reconnect",
        "_process_op_err": "reconnects",
        "_reconnection_task": "an attempt to reconnect, which close() may not end",
    },
    "TcpTransport": {
        "_io_writer": "whether TLS is established",
    },
    "Subscription": {
        "_conn": "the connection",
        "_id": "the number in the protocol",
        "_closed": "whether the program has unsubscribed",
        "_pending_queue": "received messages",
        "_pending_size": "their size",
        "_pending_bytes_limit": "its limit",
        "_received": "number of messages, for unsubscribe(limit=)",
        "_max_msgs": "the limit",
        "_message_iterator": "the iteration over them",
    },
    "_SubscriptionMessageIterator": {
        "_sub": "its subscription, also that of a PushSubscription",
        "_unsubscribed_future": "its end",
        "_cancel": "ends it",
    },
}


def get(owner: object, name: str) -> Any:
    """
    Return an attribute of an object of nats-py.

    Raises:
        CeNatsError: ``unsupported-nats-py``.
    """
    try:
        return getattr(owner, name)
    except AttributeError:
        text = f"nats-py must have {type(owner).__name__}.{name}, got version {version('nats-py')} without it"
        raise CeNatsError(ErrorCode.UNSUPPORTED_NATS_PY, text) from None


def put(owner: object, name: str, value: object) -> None:
    """
    Set an attribute of an object of nats-py.

    Raises:
        CeNatsError: ``unsupported-nats-py``: a new attribute would have no effect.
    """
    get(owner, name)
    setattr(owner, name, value)
