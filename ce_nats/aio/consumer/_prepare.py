"""Decode the messages of a consumer, and settle those that no handler gets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from nats.aio.msg import Msg
from nats.js import JetStreamContext

from ...cesql._messages import MessageFilter
from ...codec.attributes import ExtensionTypes
from ...codec.binary import Dialect
from ...codec.binding import DialectName, Mode, from_nats_message
from ...codec.event import DecodedEvent
from ...codec.mode import MARKERS, ContentMode, detect_mode, undelivered_size
from ...errors import DecodeError, DeliveryError, ErrorCode
from ...extensions.expiry import is_expired
from ...message import UnreadableHeaders
from ...redelivery import Action, Decision, Outcome, decide
from ...schemas import Validator
from .._claim_check import ClaimCheck
from .._util.supervising import call_plain
from ..core._raw_decoder import raw_decoder
from ..reading._stored_messages import as_message
from ._dead_letters import original
from ._delivery import Delivery
from ._entry import Entry
from ._ledger import Ledger
from ._record import Recorder
from ._settle import Settler


@dataclass(frozen=True, slots=True)
class Reading:
    """How messages are decoded: the arguments of :func:`ce_nats.from_nats_message`."""

    mode: Mode | None = None
    dialect: DialectName = Dialect.SPEC
    parse_data: bool = True
    extension_types: ExtensionTypes | None = None

    def of_raw(self) -> Callable[[bytes, bytes | None], DecodedEvent]:
        """Return the decoder of payloads and header blocks."""
        return raw_decoder(
            mode=self.mode,
            dialect=self.dialect,
            parse_data=self.parse_data,
            extension_types=self.extension_types,
        )

    def of_message(self, message: Any) -> DecodedEvent:
        """Decode a message."""
        return from_nats_message(
            message,
            mode=self.mode,
            dialect=self.dialect,
            parse_data=self.parse_data,
            extension_types=self.extension_types,
        )


class HeadersOnly:
    """Decodes the messages of a consumer with ``headers_only``."""

    def __init__(self, js: JetStreamContext, stream: str, reading: Reading) -> None:
        self._js = js
        self._stream = stream
        self._reading = reading

    async def decode(self, message: Msg) -> DecodedEvent:
        """
        Decode a message; a structured event is read from the stream, with its data.

        Raises:
            DeliveryError: The event cannot be read now.
        """
        if is_marker(message):
            return self._reading.of_message(message)
        try:
            mode = self._reading.mode or detect_mode(message)
        except DecodeError:
            mode = ContentMode.STRUCTURED  # or not an event, which depends on the payload
        if mode == ContentMode.STRUCTURED and undelivered_size(message.headers):
            stored = await original(self._js, message)
            if stored is not None:
                return self._reading.of_message(as_message(stored, self._stream))
        return self._reading.of_message(message)


class Preparation:
    """
    Makes deliveries of messages.

    Attributes:
        resolve: Reads data that an event refers to, or None.
    """

    def __init__(
        self,
        decode: Callable[[bytes, bytes | None], DecodedEvent],
        settler: Settler,
        ledger: Ledger,
        recorder: Recorder,
        *,
        filter: MessageFilter | None,
        validator: Validator | None,
        claim_check: ClaimCheck | None,
        parse_data: bool,
        expiry_leeway: float | None,
        headers_only: HeadersOnly | None,
        max_alone: int,
    ) -> None:
        self.decode = decode
        self.resolve = None if claim_check is None else partial(claim_check.resolve, parse_data=parse_data)
        self._settler = settler
        self._ledger = ledger
        self._recorder = recorder
        self._filter = filter
        self._validator = validator
        self._expiry_leeway = expiry_leeway
        self._headers_only = headers_only
        self._max_alone = max_alone

    @property
    def is_plain(self) -> bool:
        """Whether a message only has to be decoded, and can be acknowledged at once if it is filtered."""
        is_decoded = self._headers_only is None and self._validator is None and self._expiry_leeway is None
        return is_decoded and (self._filter is None or not self._settler.is_observed)

    async def prepare(self, entry: Entry) -> Delivery | None:
        """
        Decode a message that was taken. Return its delivery; None if it was settled, because no handler gets it.

        If the caller is cancelled meanwhile, the message is put back.
        """
        try:
            delivery = await self.read(entry)
            if delivery is None or not await self._is_wanted(delivery):
                return None
            decision = decide(Outcome.RECEIVED, entry.arrival, self._settler.decisions.policy)
            if await self._may_handle(delivery, decision):
                return delivery
            text = f"the process ended while it was handled: {entry.arrival} deliveries, and none had an outcome"
            delivery.error = DeliveryError(ErrorCode.PROCESS_ENDED, text)
            await self._settler.settle_quietly(delivery, decision, delivery.error)
        except asyncio.CancelledError:
            self._ledger.put_back(entry)
            raise
        return None

    def drops(self, entry: Entry) -> bool:
        """Whether the headers of a message show that it does not pass the filter."""
        return self._filter is not None and entry.event is None and self._filter.decision(entry.raw[3]) is False

    def passes(self, event: DecodedEvent) -> bool:
        """Whether an event passes the filter."""
        return self._filter is None or self._filter.passes(event)

    async def read(self, entry: Entry) -> Delivery | None:
        """Decode a message, and return its delivery; settle it, and return None, if it is filtered, or that fails."""
        try:
            return await self.delivery_of(entry)
        except DecodeError as error:
            await self.settle_undecodable(entry, error)
        except DeliveryError as error:
            delivery = Delivery(self._settler, entry, None)
            delivery.error = error
            # Not by the policy: the message was not handled, whatever its number of deliveries.
            retry = Decision(Action.RETRY, delay=self._settler.delay(delivery))
            await self._settler.settle_quietly(delivery, retry, error, is_reported=True)
        return None

    async def delivery_of(self, entry: Entry) -> Delivery | None:
        """
        Decode a message, unless that was done before, and return its delivery; settle it, and return None, if it is
        filtered.

        Raises:
            DecodeError: It has no event.
            DeliveryError: The event cannot be read now.
        """
        event = entry.event
        if self.drops(entry):
            await self._settler.settle_quietly(Delivery(self._settler, entry, None), Outcome.FILTERED)
            return None
        if event is None:
            if self._headers_only is not None:
                event = await self._headers_only.decode(entry.as_message(self._settler.nc))
            else:
                if not entry.raw[0].isascii():
                    _check_subject(entry.as_message(self._settler.nc))
                event = self.decode(entry.raw[2], entry.raw[3])
            if not self.passes(event):
                await self._settler.settle_quietly(Delivery(self._settler, entry, event), Outcome.FILTERED)
                return None
            self._ledger.keep(entry, event)
        return Delivery(self._settler, entry, event, self.resolve)

    async def settle_undecodable(self, entry: Entry, error: DecodeError) -> None:
        """Settle a message that has no event."""
        delivery = Delivery(self._settler, entry, None)
        delivery.error = error
        outcome = Outcome.MARKER if is_marker(delivery.message) else Outcome.UNDECODABLE
        await self._settler.settle_quietly(delivery, outcome, error)

    async def _is_wanted(self, delivery: Delivery) -> bool:
        """Return whether an event is neither expired nor invalid; settle its message if it is."""
        if self._expiry_leeway is not None and _is_expired(delivery.event, self._expiry_leeway):
            await self._settler.settle_quietly(delivery, Outcome.EXPIRED)
            return False
        if self._validator is None:
            return True
        try:
            call_plain("validate", self._validator.check, await delivery.resolve())
        except Exception as error:
            outcome = delivery._outcome(error)
            if outcome is Outcome.REJECTED and isinstance(error, DecodeError):
                delivery.error = error
            await self._settler.settle_quietly(delivery, outcome, error, is_reported=delivery.error is None)
            return False
        return True

    async def _may_handle(self, delivery: Delivery, decision: Decision) -> bool:
        """
        Record that a suspect is handled alone. Return False if it has ended processes too often.

        Its number of deliveries alone proves nothing: it also counts processes that never called a handler.
        """
        if not self._ledger.isolation.is_alone(delivery._entry):
            return True
        has_limit = decision.action is not Action.HANDLE
        try:
            return await self._recorder.begin(delivery.sequence, self._max_alone if has_limit else math.inf)
        except DeliveryError as error:
            if has_limit:
                text = (
                    f"it was delivered {delivery.deliveries} times, and is handled again, because the consumer cannot "
                    f"record whether its handler ends the process: {error.message}"
                )
                self._settler.reporter.report(DeliveryError(error.code, text), delivery)
            return True


def _check_subject(message: Msg) -> None:
    """
    Check that the subject of a message is text.

    Raises:
        DecodeError: ``invalid-utf8``.
    """
    headers: object = message.headers
    if isinstance(headers, UnreadableHeaders) and headers.error.code is ErrorCode.INVALID_UTF8:
        raise headers.error


def is_marker(message: Msg) -> bool:
    """Return whether a message is a tombstone of a key-value bucket, which has no event."""
    headers: dict[str, Any] = message.headers or {}
    return not message.data and any(name in headers for name in MARKERS)


def _is_expired(event: DecodedEvent, leeway: float) -> bool:
    try:
        return is_expired(event, leeway=leeway)
    except DecodeError:  # expirytime is not a timestamp
        return False
