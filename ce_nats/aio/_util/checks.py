"""Check arguments: a connection and a JetStreamContext are easily confused."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from ..._callables import is_async, name_of
from ..._numbers import check_count as check_count
from ..._numbers import check_positive as check_positive
from ...errors import preview
from ...routing import AnyRouter

# The name of the consumer, and the fields that a PullConsumer sets.
_NOT_COMPARED: Final = ("name", "durable_name", "ack_policy")


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


def check_create(config: ConsumerConfig | None, name: str) -> None:
    """
    Check that the configuration of a new consumer has no other name, and that its messages are acknowledged.

    Raises:
        ValueError: It has, or they are not.
    """
    if config is None:
        return
    for field in ("name", "durable_name"):
        if (other := getattr(config, field)) not in (None, name):
            raise ValueError(f"create must have the {field} {preview(name)} or none, got {preview(other)}")
    if config.ack_policy not in (None, AckPolicy.EXPLICIT):
        policy = getattr(config.ack_policy, "value", config.ack_policy)
        raise ValueError(f"create must have the ack_policy explicit, got {preview(policy)}")


def config_differences(wanted: ConsumerConfig, existing: ConsumerConfig) -> list[str]:
    """
    Return a text for each field of a configuration that differs in an existing consumer.

    Fields that are None are set by the server. So is ``ack_wait`` if there is ``backoff``, which overrides it.
    """
    differences = []
    for field in dataclasses.fields(ConsumerConfig):
        name = field.name
        value, actual = getattr(wanted, name), getattr(existing, name)
        if value is None or name in _NOT_COMPARED or (name == "ack_wait" and wanted.backoff):
            continue
        if name == "metadata" and isinstance(actual, dict):
            actual = {key: actual[key] for key in value if key in actual}  # the server adds others
        if value != actual and (value or actual):  # 0, "" and None mean the same to the server
            differences.append(f"{name} is {actual!r}, not {value!r}")
    return differences


def check_key(key: object) -> None:
    """
    Check that an argument is a function that is not async, or None.

    Raises:
        TypeError: It is not.
    """
    if key is not None and (not callable(key) or inspect.iscoroutinefunction(key)):
        raise TypeError(f"key must be a function that is not async, or None, got {preview(key)}")


def check_handler(handler: object) -> None:
    """
    Check that an argument is an async function, or an object with an async ``__call__``.

    A plain function is refused before it is called, and not run in a thread: methods of a delivery must be called in
    the event loop, and a thread cannot be cancelled. Blocking code can use ``asyncio.to_thread()`` or ``ce_nats.sync``.
    A lambda may return an awaitable, so it is checked when it is called.

    Raises:
        TypeError: It is not.
    """
    if not is_async(handler) and getattr(handler, "__name__", "") != "<lambda>":
        raise not_async(handler)


def check_single(handler: object) -> None:
    """
    Check that a handler takes single deliveries.

    Raises:
        TypeError: It is a router that has handlers of batches.
    """
    if isinstance(handler, AnyRouter) and handler.has_batches:
        raise TypeError("handler must take single events, got a router with handlers of batches, for run_batches()")


def not_async(handler: object) -> TypeError:
    """Return the error for a handler that is not async."""
    return TypeError(
        f"handler must be an async function (async def), got {name_of(handler)}; for code that blocks use "
        "asyncio.to_thread() in it, or ce_nats.sync"
    )


def check_hook(name: str, hook: object) -> None:
    """
    Check that an argument is a function that is not async, or None: nothing would await it.

    Raises:
        TypeError: It is async, or cannot be called.
    """
    if hook is not None and (inspect.iscoroutinefunction(hook) or not callable(hook)):
        raise _unlike(name, "a function that is not async", hook)


def check_exceptions(name: str, kinds: object) -> None:
    """
    Check that an argument is a sequence of exception classes.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(kinds, Sequence) or not all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds
    ):
        raise TypeError(f"{name} must be a sequence of exception classes, got {preview(repr(kinds))}")


def _unlike(name: str, wanted: str, given: object) -> TypeError:
    kind = type(given)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return TypeError(f"{name} must be {wanted}, got {module}{kind.__qualname__}")


def check_time(name: str, value: object) -> None:
    """
    Check an optional instant.

    Raises:
        TypeError: It is not a datetime.
        ValueError: It has no time zone.
    """
    if value is None:
        return
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be a datetime or None, got {preview(value)}")
    if value.utcoffset() is None:
        raise ValueError(f"{name} must have a time zone, got {value.isoformat()}")
