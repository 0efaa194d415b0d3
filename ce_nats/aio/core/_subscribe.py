"""
Receive events from subscriptions.

Each message yields one :class:`~ce_nats.aio.Received`, also if it is not a CloudEvent: the iteration neither stops nor
skips the message, and the program decides what to do with message and error. Only status messages of the server are
skipped.

:func:`subscribe` decodes the header block as received: a repeated attribute and a malformed header line are errors, and
headers that are not of CloudEvents may have bytes that are not UTF-8. For a subscription of the caller, :func:`events`,
nats-py changes headers before: it keeps only the last value of a repeated name, replaces bytes that are not UTF-8 by
U+FFFD, and drops malformed header lines. So it does with ``received.message`` of both.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, TypedDict

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import BadSubscriptionError, ConnectionClosedError, ConnectionDrainingError, Error

from ... import cesql
from ...cesql._messages import MessageFilter
from ...codec.attributes import ExtensionTypes
from ...codec.binary import Dialect
from ...codec.binding import DialectName, Mode, from_nats_message
from ...codec.event import DecodedEvent
from ...errors import DecodeError, DeliveryError, ErrorCode
from ...message import UnreadableHeaders
from ...schemas import Validate, Validator, validator_of
from .._errors import delivery_errors
from .._util.checks import check_client, check_subscription
from .._util.opening import opening
from ..link._client import client_of, is_unsubscribed, subscription_id
from ..link._frame_splitter import RawMessage
from ..link._link import Link
from ..link._messages import message_of
from ..link._permissions import Denial
from ..link._queue import MessageQueue
from ._publish import round_trip
from ._raw_decoder import RawDecoder, raw_decoder
from ._received import RawReceived, Received

# Ends of reply subjects: the message ends a batch, or asks for its last acknowledgement.
_BATCH_CONTROLS: Final = (".3.$FI", ".4.$FI")
_STATUS_CODE: Final = re.compile("[0-9]{3}")
# Number of messages that are returned before other tasks run, if that many have arrived.
_MAX_AT_ONCE: Final = 64


class _Options(TypedDict):
    """Options of decoding."""

    mode: Mode | None
    dialect: DialectName
    parse_data: bool
    extension_types: ExtensionTypes | None


class Events:
    """
    Asynchronous iterator over the messages of a subscription; created by :func:`events` and :func:`subscribe`.

    It ends when the program unsubscribes, drains, or closes the connection. It raises when the connection is lost
    permanently, or when the server denies the permission. As a context manager it unsubscribes at the end of the block.
    ``__anext__`` may be cancelled, by a timeout for instance, without losing a message.

    Attributes:
        subscription: Subscription of nats-py.
    """

    def __init__(
        self,
        subscription: Subscription,
        decode: Callable[[Msg], DecodedEvent],
        decode_raw: RawDecoder,
        filter: MessageFilter | None = None,
        validator: Validator | None = None,
    ) -> None:
        self.subscription = subscription
        self._nc = client_of(subscription)
        self._sid = subscription_id(subscription)
        self._queue = MessageQueue.of(subscription)
        self._at_once = 0
        self._decode = decode
        self._decode_raw = decode_raw
        self._filter = filter
        self._validator = validator
        self._denied: DeliveryError | None = None
        self._link = Link.of(self._nc)
        self._link.permissions.add(self._on_denial)

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Received:
        """
        Return the next message.

        Raises:
            DeliveryError: ``connection-closed``: the connection was lost, and nats-py does not reconnect any more;
                ``permission-denied``.
        """
        while True:
            # A message is taken only after the last await, so that a cancellation cannot lose it.
            if self._at_once >= _MAX_AT_ONCE:
                self._at_once = 0
                await asyncio.sleep(0)
            message = self._queue.take()
            if message is not None:
                self._at_once += 1
                received = self._receive_raw(message) if isinstance(message, tuple) else self._receive(message)
                if received is not None:
                    return received
            elif self._queue.has_ended:
                self._check()
                raise StopAsyncIteration
            else:
                self._at_once = 0
                await self._queue.wait()

    def _receive_raw(self, raw: RawMessage) -> Received | None:
        """Decode a raw message; return None as :func:`receive` does, and if it does not pass the filter."""
        subject, reply, payload, block = raw
        try:
            if not (subject.isascii() and reply.isascii()):
                _check_subjects(message_of(self._nc, self._sid, raw))
            if self._filter is not None and self._filter.decision(block) is False:
                return None
            event = self._decode_raw(payload, block)
            if self._filter is not None and not self._filter.passes(event):
                return None
            if self._validator is not None:
                self._check_valid(event)
        except DecodeError as error:
            received = RawReceived(self._nc, self._sid, raw, None, error)
            return None if _is_skipped(received.message, error) else received
        return RawReceived(self._nc, self._sid, raw, event)

    def _receive(self, message: Msg) -> Received | None:
        """As :meth:`_receive_raw`, of a message of nats-py."""
        received = receive(message, self._decode)
        if received is None or received.error is not None:
            return received
        if self._filter is not None and not self._filter.passes(received.event):
            return None
        if self._validator is not None:
            try:
                self._check_valid(received.event)
            except DecodeError as error:
                return Received(message, None, error)
        return received

    def _check_valid(self, event: DecodedEvent) -> None:
        assert self._validator is not None
        try:
            self._validator.check(event)
        except asyncio.CancelledError as error:  # would end the caller's task without a trace
            raise RuntimeError("validate must not raise CancelledError") from error

    async def __aenter__(self) -> Events:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def dropped(self) -> int:
        """Number of messages that are lost, because more of them waited for the iteration than nats-py keeps."""
        return self._link.dropped.get(self._sid, 0)

    async def stop(self) -> None:
        """Unsubscribe. Further calls have no effect."""
        self._link.permissions.remove(self._on_denial)
        with suppress(BadSubscriptionError, ConnectionClosedError, ConnectionDrainingError):
            await self.subscription.unsubscribe()

    def _check(self) -> None:
        """
        Raise the error that prevents messages from arriving, if there is one.

        Raises:
            DeliveryError: As the iteration does.
        """
        if self._denied is not None:
            raise self._denied
        loss = self._link.ending.loss
        if loss is not None and not is_unsubscribed(self.subscription):
            text = f"{self.subscription.subject}: the connection was lost: {loss}"
            raise DeliveryError(ErrorCode.CONNECTION_CLOSED, text) from loss

    def _on_denial(self, denial: Denial) -> bool:
        if not denial.is_subscription(self.subscription.subject):
            return False
        self._denied = denial.error(self.subscription.subject)
        self._queue.end()
        return True


def events(
    subscription: Subscription,
    *,
    mode: Mode | None = None,
    dialect: DialectName = Dialect.SPEC,
    parse_data: bool = True,
    extension_types: ExtensionTypes | None = None,
    filter: str | cesql.Expression | None = None,
    validate: Validate | None = None,
) -> Events:
    """
    Iterate over the events of a subscription that has no callback.

        async for received in events(await nc.subscribe("orders.>")):
            if received.error:
                print(received.message.subject, received.error.code)
            else:
                print(received.event.get_id())

    Args:
        subscription: From ``nc.subscribe()``, or from ``js.subscribe()`` if the caller acknowledges messages.
        mode: As for :func:`ce_nats.from_nats_message`.
        dialect: Dialect of binary mode of the senders.
        parse_data: False returns data as bytes.
        extension_types: Python types of extension attributes.
        filter: Expression of CloudEvents SQL on the attributes of events; those that do not pass are dropped. The first
            three on which it has an error, for instance a missing attribute, are logged.
        validate: Checks each event: :class:`ce_nats.schemas.Schemas`, a mapping for it, or a function. An event that it
            refuses is yielded as an error, ``data-mismatch``.

    Raises:
        TypeError: ``subscription`` has another type.
        ValueError: The subscription has a callback, or ``filter`` is not an expression.
    """
    check_subscription(subscription)
    try:
        _ = subscription.messages
    except Error as error:
        raise ValueError("subscription must have no callback: its messages go to the callback") from error
    options: _Options = {
        "mode": mode,
        "dialect": dialect,
        "parse_data": parse_data,
        "extension_types": extension_types,
    }
    decode = partial(from_nats_message, **options)
    found = MessageFilter.of(filter, subscription.subject, mode=mode, dialect=dialect, extension_types=extension_types)
    return Events(subscription, decode, raw_decoder(**options), found, validator_of(validate))


@opening
async def subscribe(
    nc: Client,
    subject: str,
    *,
    queue: str = "",
    mode: Mode | None = None,
    dialect: DialectName = Dialect.SPEC,
    parse_data: bool = True,
    extension_types: ExtensionTypes | None = None,
    filter: str | cesql.Expression | None = None,
    validate: Validate | None = None,
) -> Events:
    """
    Subscribe, and receive the events that are published after this call has returned.

        async with subscribe(nc, "orders.>") as received:
            async for item in received: ...

    Args:
        nc: An open connection.
        subject: Subject, wildcards allowed.
        queue: Queue group; each message is delivered to one of its members.
        mode: As for :func:`events`.
        dialect: Dialect of binary mode of the senders.
        parse_data: False returns data as bytes.
        extension_types: Python types of extension attributes.
        filter: As for :func:`events`.
        validate: As for :func:`events`.

    Raises:
        EncodeError: ``invalid-subject``.
        DeliveryError: ``connection-closed``, ``permission-denied``.
        ValueError: ``filter`` is not an expression.
    """
    check_client(nc)
    validator = validator_of(validate)
    expression = None if filter is None else cesql.compile(filter)
    with delivery_errors(subject, nc):
        subscription = await MessageQueue.subscribe(nc, subject, queue=queue)
    received = events(
        subscription,
        mode=mode,
        dialect=dialect,
        parse_data=parse_data,
        extension_types=extension_types,
        filter=expression,
    )
    received._validator = validator
    try:
        await round_trip(nc)
        received._check()
    except BaseException:
        await received.stop()
        raise
    return received


def receive(message: Msg, decode: Callable[[Msg], DecodedEvent]) -> Received | None:
    """Decode a message; return None for a status message of the server, and for one that controls a batch."""
    try:
        return Received(message, decode(message))
    except DecodeError as error:
        return None if _is_skipped(message, error) else Received(message, None, error)


def _is_skipped(message: Msg, error: DecodeError) -> bool:
    """Return whether an undecodable message is a status message of the server, or controls a batch."""
    return (error.code is ErrorCode.NOT_A_CLOUDEVENT and _is_status(message)) or _controls_batch(message)


def _check_subjects(message: Msg) -> None:
    """Raise the error of a message whose subject or reply subject is not UTF-8, as for one of nats-py."""
    if isinstance(message.headers, UnreadableHeaders):
        raise message.headers.error


def _controls_batch(message: Msg) -> bool:
    """Return whether a message ends or tests a batch of fast ingest (ADR-50), and is not stored."""
    return not message.data and not message.headers and message.reply.endswith(_BATCH_CONTROLS)


def _is_status(message: Msg) -> bool:
    # nats-py returns the status line as a header: "NATS/1.0 503" becomes {"Status": "503"}.
    headers: dict[str, Any] = message.headers or {}
    return not message.data and _STATUS_CODE.fullmatch(headers.get("Status", "")) is not None
