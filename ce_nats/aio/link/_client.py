"""Which connection does an object of nats-py belong to, and what is known of it and its server?"""

from __future__ import annotations

import re
from typing import Any, cast

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext

from ._private import get, put


def client_of(owner: JetStreamContext | Subscription | Msg) -> Client:
    """Return the connection of a JetStreamContext, a subscription or a message."""
    if isinstance(owner, JetStreamContext):
        return cast(Client, get(owner, "_nc"))
    return cast(Client, get(owner, "_conn" if isinstance(owner, Subscription) else "_client"))


def api_prefix(js: JetStreamContext) -> str:
    """Return the first tokens of the subjects of JetStream's API."""
    return str(get(js, "_prefix"))


def api_timeout(js: JetStreamContext) -> float:
    """Return the timeout for a response of JetStream's API, in seconds."""
    return float(get(js, "_timeout"))


def server_info(nc: Client) -> dict[str, Any]:
    """Return the server's last INFO; empty before a connection."""
    return cast("dict[str, Any]", get(nc, "_server_info"))


def is_server_from(nc: Client, version: tuple[int, int]) -> bool:
    """Return whether the connected server has a version, major and minor, or a later one; False if that is unknown."""
    found = re.match(r"(\d{1,9})\.(\d{1,9})", str(server_info(nc).get("version", "")))
    return found is not None and (int(found[1]), int(found[2])) >= version


def request_inbox(nc: Client) -> str:
    """Return the subject that nats-py has subscribed to for replies to requests; ``""`` before the first request."""
    prefix = get(nc, "_resp_sub_prefix")
    return f"{prefix.decode()}*" if prefix else ""


def mark_acked(message: Msg) -> None:
    """Let nats-py know that a message was settled in another way: its methods then raise an error."""
    put(message, "_ackd", True)


def subscription_id(subscription: Subscription) -> int:
    """Return the id (sid) of a subscription in the protocol."""
    return int(get(subscription, "_id"))


def has_subscription(nc: Client, sid: int) -> bool:
    """Return whether a connection has a subscription, which it loses when it is closed."""
    return sid in get(nc, "_subs")


def is_unsubscribed(subscription: Subscription) -> bool:
    """Return whether the program has unsubscribed."""
    return bool(get(subscription, "_closed"))
