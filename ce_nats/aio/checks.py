"""Checks of arguments: a connection and a JetStreamContext are easily mixed up."""

from __future__ import annotations

from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig


def check_client(nc: object) -> None:
    """
    Check that an argument is a connection.

    Raises:
        TypeError: It has another type.
    """
    if not isinstance(nc, Client):
        raise _unlike("nc", "a connection (nats.aio.client.Client)", nc)


def check_jetstream(js: object) -> None:
    """
    Check that an argument is a JetStreamContext.

    Raises:
        TypeError: It has another type.
    """
    if not isinstance(js, JetStreamContext):
        raise _unlike("js", "a JetStreamContext (nc.jetstream())", js)


def check_subscription(subscription: object) -> None:
    """
    Check that an argument is a subscription that can be iterated over.

    Raises:
        TypeError: It has another type.
    """
    if not isinstance(subscription, Subscription):
        raise _unlike("subscription", "a Subscription (await nc.subscribe(...))", subscription)


def check_config(name: str, config: object) -> None:
    """
    Check that an argument is a consumer's configuration, or None.

    Raises:
        TypeError: It has another type.
    """
    if config is not None and not isinstance(config, ConsumerConfig):
        raise _unlike(name, "a nats.js.api.ConsumerConfig", config)


def _unlike(name: str, wanted: str, given: object) -> TypeError:
    kind = type(given)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return TypeError(f"{name} must be {wanted}, got {module}{kind.__qualname__}")
