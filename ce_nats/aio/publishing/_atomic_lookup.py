"""
Look up what an atomic batch needs to know of its stream.

Before it is sent: whether the stream stores batches, because a server before 2.12 ignores the headers of a batch and
stores each message at once. After a missing acknowledgement: whether the batch is stored. After a refusal: which event
caused it, because the server only reports the reason.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from nats.js import JetStreamContext

from ..._ranges import StreamRange, StreamState
from ...errors import ApiError, DeliveryError, EncodeError, ErrorCode, NoStreamError
from ...message import MSG_ID, NatsMessage
from ...subjects import covers
from .. import _server_codes as codes
from .._jetstream_api import StreamApi
from ..link._client import api_prefix, api_timeout, client_of
from ..link._frame_splitter import RawMessage
from ..reading._range_reader import read_range_on
from ._prepare import TTL

BATCH_ID: Final = "Nats-Batch-Id"
BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
BATCH_COMMIT: Final = "Nats-Batch-Commit"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Sequence"
EXPECTED_SUBJECT_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"

_SEQUENCE_IN_BLOCK: Final = re.compile(rb"\r\nNats-Batch-Sequence: ?([0-9]{1,9})\r\n")
_REPORTED_SEQUENCE: Final = re.compile("wrong last sequence: ([0-9]{1,20})")
_ID_IN_BLOCK: Final = re.compile(rb"\r\nNats-Msg-Id: ?([^\r\n]*)\r\n")
# Maximum number of requests in flight.
_MAX_REQUESTS: Final = 64
# Limits of the search for a duplicate: the last messages of the stream, and seconds.
_RECENT_MESSAGES: Final = 10_000
_SEARCH_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class BatchStream:
    """
    Stream of an atomic batch.

    Attributes:
        state: Its state before the batch was sent.
        duplicate_window: Seconds for which it detects duplicates.
        max_message_bytes: Maximum size of a message; -1 for no limit.
        has_other_subjects: Whether messages are stored on other subjects than they are published to.
    """

    state: StreamState
    duplicate_window: float
    max_message_bytes: int
    has_other_subjects: bool

    @property
    def name(self) -> str:
        return self.state.name


class AtomicLookup:
    """Requests about the stream of an atomic batch."""

    def __init__(self, js: JetStreamContext, retry_timeout: float) -> None:
        self._nc = client_of(js)
        self._prefix = api_prefix(js)
        self._timeout = api_timeout(js)
        self._retry_timeout = retry_timeout
        self._api = StreamApi.of(js, retry_timeout=retry_timeout)

    async def stream(self, name: str | None, subjects: Sequence[str]) -> BatchStream:
        """
        Return the stream of a batch.

        Raises:
            EncodeError: ``invalid-batch``: the stream does not listen on all subjects.
            DeliveryError: ``no-responders``: no stream listens; ``incompatible-config``: the stream does not store
                atomic batches, or does not acknowledge messages; as :meth:`StreamApi.state` does.
        """
        config, state = await self._api.config_and_state(await self._name_on(subjects[0]) if name is None else name)
        patterns = config.get("subjects") or []
        other = next((one for one in subjects if not any(covers(pattern, one) for pattern in patterns)), None)
        if name is None and other is not None:
            raise await self._other_stream(state.name, subjects[0], other)
        if not config.get("allow_atomic"):
            raise not_allowed(state.name)
        if config.get("no_ack"):
            text = f"stream {state.name}: a stream with no_ack does not report whether it has stored an atomic batch"
            raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, text)
        return BatchStream(
            state,
            duplicate_window=(config.get("duplicate_window") or 0) / 1e9,
            max_message_bytes=config.get("max_msg_size", -1),
            has_other_subjects=bool(config.get("subject_transform")) or other is not None,
        )

    async def _name_on(self, subject: str) -> str:
        names = await self._api.names_on(subject)
        if len(names) == 1:
            return names[0]
        text = f"no stream listens on {subject!r} according to JetStream's API on {self._prefix!r}"
        text += "; pass stream= if the subject is mapped, or has another name there"
        raise NoStreamError(ErrorCode.NO_RESPONDERS, text)

    async def _other_stream(self, name: str, subject: str, other: str) -> EncodeError:
        """Return the error for a subject that is not one of the stream of another subject."""
        names = [f"stream {one}" for one in await self._api.names_on(other)]
        return EncodeError(
            ErrorCode.INVALID_BATCH,
            f"all events of an atomic batch must be for one stream, got {subject!r} of stream {name} and {other!r} of "
            f"{' and '.join(names) or 'no stream'}; nothing was sent",
        )

    # --- After a missing acknowledgement ------------------------------------------------------------------------------

    async def find(
        self, stream: BatchStream, batch_ids: Collection[str], subject: str | None = None
    ) -> tuple[int, str] | None:
        """
        Return the sequence of the first message of a stored batch, and its id; None if no message of it is found.

        Raises:
            DeliveryError: The stream cannot be read; as :meth:`StreamApi.state` does.
        """
        lines = {f"\r\n{BATCH_ID}: {batch_id}\r\n".encode(): batch_id for batch_id in batch_ids}
        pattern = ">" if subject is None or stream.has_other_subjects else subject
        sequence, last = stream.state.last + 1, (await self._api.state(stream.name)).last
        # One by one, from the leader of the stream: a consumer may be on a server that does not have the batch yet.
        while sequence <= last:
            message = await self._api.stored(stream.name, {"seq": sequence, "next_by_subj": pattern})
            if message is None:
                break
            found = next((batch_id for line, batch_id in lines.items() if line in message.hdrs), None)
            if found is not None and (position := _SEQUENCE_IN_BLOCK.search(message.hdrs)):
                return message.seq - int(position[1]) + 1, found
            sequence = message.seq + 1
        return None

    async def is_complete(self, stream: BatchStream) -> bool:
        """
        Return whether the stream still has all messages that it has stored since a batch was sent.

        If not, a message that is not found may have been stored and removed, by a consumer or a limit.
        """
        before, now = stream.state, await self._api.state(stream.name)
        deleted = now.last - now.first + 1 - now.messages
        deleted_before = before.last - before.first + 1 - before.messages
        same_beginning = now.first == before.first and deleted == deleted_before
        return now.created == before.created and now.first <= before.last + 1 and (same_beginning or not deleted)

    async def _blocks(self, wanted: StreamRange) -> AsyncIterator[bytes]:
        """Yield the header blocks of a range."""
        batches = read_range_on(
            self._nc,
            wanted,
            prefix=self._prefix,
            on_loss=lambda loss: None,
            request_timeout=self._timeout,
            retry_timeout=self._retry_timeout,
        )
        async with aclosing(batches) as found:
            async for batch in found:
                message: RawMessage
                for message in batch.messages:
                    yield message[3] or b""

    # --- After a refusal ----------------------------------------------------------------------------------------------

    async def cause(self, stream: BatchStream, error: ApiError, messages: Sequence[NatsMessage]) -> int | None:
        """Return the position of the message for which a stream has refused a batch; None if it is not found."""
        if len(messages) == 1:
            return 0
        with suppress(DeliveryError, asyncio.TimeoutError):
            if error.err_code == codes.WRONG_LAST_SEQUENCE:
                return await self._wrong_sequence(stream, error, messages)
            if error.err_code == codes.ATOMIC_DUPLICATE:
                return await asyncio.wait_for(self._duplicate(stream, messages), _SEARCH_SECONDS)
        for number, header in ((codes.STREAM_NOT_MATCH, EXPECTED_STREAM), (codes.TTL_DISABLED, TTL)):
            if error.err_code == number:
                values = ((position, message.headers.get(header)) for position, message in enumerate(messages))
                return next((position for position, value in values if value not in ("", stream.name)), None)
        return None

    async def _wrong_sequence(
        self, stream: BatchStream, error: ApiError, messages: Sequence[NatsMessage]
    ) -> int | None:
        """Compare the expected last sequences with those of the stream, and with that in the error."""
        reported = _REPORTED_SEQUENCE.search(error.message)
        expected = [
            (position, message.headers.get(EXPECTED_SUBJECT) or message.subject, value)
            for position, message in enumerate(messages)
            if (value := message.headers.get(EXPECTED_SUBJECT_SEQUENCE))
        ]
        if not stream.has_other_subjects:
            for start in range(0, len(expected), _MAX_REQUESTS):
                part = expected[start : start + _MAX_REQUESTS]
                last = await asyncio.gather(*(self._last_sequence(stream.name, subject) for _, subject, _ in part))
                for (position, _, value), sequence in zip(part, last):
                    if value != str(sequence) and reported and reported[1] == str(sequence):
                        return position
        # Only the first message may expect the last sequence of the stream.
        return 0 if messages[0].headers.get(EXPECTED_SEQUENCE) else None

    async def _last_sequence(self, name: str, subject: str) -> int:
        message = await self._api.stored(name, {"last_by_subj": subject})
        return 0 if message is None else message.seq

    async def _duplicate(self, stream: BatchStream, messages: Sequence[NatsMessage]) -> int | None:
        """Look for the ids of messages in the last messages of the stream."""
        positions: Mapping[bytes, int] = {
            value.encode(): position
            for position, message in enumerate(messages)
            if (value := message.headers.get(MSG_ID))
        }
        now = await self._api.state(stream.name)
        found: set[int] = set()
        wanted = StreamRange(stream.name, max(now.first, now.last - _RECENT_MESSAGES + 1), now.last)
        async for block in self._blocks(wanted):
            if (match := _ID_IN_BLOCK.search(block)) and match[1] in positions:
                found.add(positions[match[1]])
        return min(found, default=None)


def not_allowed(stream: str) -> DeliveryError:
    """Return the error for a stream that does not store atomic batches."""
    return DeliveryError(
        ErrorCode.INCOMPATIBLE_CONFIG,
        f"stream {stream} must allow atomic batches, with nats-server 2.12.1 or later: "
        f"await aio.jetstream.configure_stream(js, {stream!r}, allow_atomic=True)",
    )
