"""
Restore the originals of dead letters, and check the subjects that they are published to.

Each client that may publish to the subject for dead letters can write one, with any subject and any stream in it. So an
original is published only to a subject on which its stream listens, or that the caller allows, and never to a subject
on which the server acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nats.js import JetStreamContext

from ..._instructions import copied_headers
from ...codec.timestamp import Timestamp
from ...errors import ApiError, CeNatsError, DeliveryError, EncodeError, ErrorCode, preview
from ...message import MSG_ID, NatsMessage, StoredMessage
from ...redelivery import BLOCK_HEADER, DeadLetter
from ...subjects import check_name, check_pattern, covers
from .. import _server_codes as codes
from .._foreign_subjects import check_foreign_subject
from .._jetstream_api import StreamApi, nanoseconds
from ..link._client import client_of
from ..publishing._replay import framed
from ..reading._stored_messages import as_message, block_pairs

VERSION_LINE: Final = b"NATS/1.0\r\n"
_REFUSED_AS_TOO_LARGE: Final = (codes.MESSAGE_EXCEEDS_MAXIMUM, codes.HEADERS_EXCEED_MAXIMUM)
_TOO_LARGE: Final = (ErrorCode.PAYLOAD_TOO_LARGE, ErrorCode.HEADERS_TOO_LARGE)


class Originals:
    """
    Restores the originals of dead letters, and caches the subjects of their streams.

    Raises:
        EncodeError: ``invalid-subject``: a pattern is not valid.
    """

    def __init__(self, js: JetStreamContext, allowed: Sequence[str] | None, api: StreamApi) -> None:
        for pattern in allowed or ():
            check_pattern(pattern)
        self._nc = client_of(js)
        self._api = api
        self._allowed = allowed
        self._found: dict[str, list[str] | CeNatsError] = {}

    async def outgoing(self, stored: StoredMessage) -> tuple[NatsMessage, bytes]:
        """Return the original of a dead letter, ready to be published, and its header block."""
        dead_letter, headers = DeadLetter.split(stored.headers)
        is_whole = dead_letter.is_complete and all(name != BLOCK_HEADER for name, _ in stored.headers)
        if not is_whole and not dead_letter.is_reference:
            raise EncodeError(ErrorCode.INVALID_MESSAGE, "the original of the dead letter is incomplete")
        await self._check_subject(dead_letter)
        if dead_letter.is_reference:
            message = await self.fetch(dead_letter)
        else:
            message = stored._replace(subject=dead_letter.subject, headers=headers)
            if dead_letter.later and self._allowed is None:
                await self._check_unchanged(dead_letter, message)
        kept = [pair for pair in copied_headers(message.headers) if pair[0] != MSG_ID]
        identifier = f"requeued:{stored.stream}:{stored.sequence}:{nanoseconds(stored.timestamp)}"
        try:
            return framed(self._nc, message._replace(headers=[*kept, (MSG_ID, identifier)]))
        except EncodeError as error:
            # An original that is too large for the headers of a dead letter may be too large for this header.
            if not is_too_large(error):
                raise
            return framed(self._nc, message._replace(headers=kept))

    async def fetch(self, dead_letter: DeadLetter) -> StoredMessage:
        """
        Read the original of a dead letter from its stream.

        Only a message with the subject in the dead letter is returned: otherwise the author of a dead letter could
            cause
        any message of any stream to be published to a subject that it may subscribe to.
        """
        stream, sequence = dead_letter.stream, dead_letter.sequence
        check_name("the stream of a dead letter", stream)
        time = Timestamp.parse(dead_letter.time)
        found = await self._api.stored(stream, {"seq": sequence})
        if found is None:
            text = f"stream {stream} no longer has message {sequence}, the original of the dead letter"
            raise DeliveryError(ErrorCode.MESSAGE_NOT_FOUND, text)
        if nanoseconds(Timestamp.parse(found.time)) != nanoseconds(time) or found.subject != dead_letter.subject:
            text = f"message {sequence} of stream {stream} must be the original of the dead letter, got another one"
            raise DeliveryError(ErrorCode.MESSAGE_NOT_FOUND, text)
        if found.hdrs and not is_header_block(found.hdrs):
            raise EncodeError(ErrorCode.INVALID_MESSAGE, "the header block of the original is malformed")
        return as_message(found, stream)

    async def _check_unchanged(self, dead_letter: DeadLetter, message: StoredMessage) -> None:
        """
        Check that the stream has the original of a dead letter that was dead-lettered again.

        Each client that may publish to a consumer's stream can write such a one, not only those that may publish dead
        letters, and the consumer copies what it says.
        """
        stream, sequence = dead_letter.stream, dead_letter.sequence
        found = await self._api.stored(stream, {"seq": sequence})
        if found is None or (
            (found.subject, found.data, sorted(block_pairs(found.hdrs)))
            != (message.subject, message.data, sorted(message.headers))
        ):
            raise EncodeError(
                ErrorCode.FORBIDDEN_SUBJECT,
                "the subject of a dead letter that was dead-lettered again must be one that is allowed, unless message "
                f"{sequence} of stream {preview(stream)} is its original, got {preview(message.subject)}",
            )

    async def _check_subject(self, dead_letter: DeadLetter) -> None:
        subject, stream = dead_letter.subject, dead_letter.stream
        allowed = self._allowed
        if allowed is None:
            # Before the request to the server: the dead letter also contains the name of the stream.
            check_foreign_subject(self._nc, subject, allowed=[subject])
            check_name("the stream of a dead letter", stream)
            allowed = await self._subjects_of(stream)
        check_foreign_subject(self._nc, subject, allowed=allowed)
        if not any(covers(pattern, subject) for pattern in allowed):
            wanted = "one that is allowed" if self._allowed else f"one on which stream {preview(stream)} listens"
            raise EncodeError(
                ErrorCode.FORBIDDEN_SUBJECT,
                f"the subject of a dead letter's original must be {wanted}, got {preview(subject)}",
            )

    async def _subjects_of(self, stream: str) -> list[str]:
        found = self._found.get(stream)
        if found is None:
            try:
                found = await self._api.origin_subjects(stream)
            except CeNatsError as error:
                found = error  # not requested again for each dead letter
            self._found[stream] = found
        if isinstance(found, CeNatsError):
            raise found
        return found


def is_header_block(block: bytes) -> bool:
    """Return whether a header block begins and ends correctly; any client may publish others."""
    return block.startswith(VERSION_LINE) and block.endswith(b"\r\n\r\n")


def is_too_large(error: CeNatsError) -> bool:
    """Return whether a message exceeds the limits of the server or of the stream."""
    return error.code in _TOO_LARGE or (isinstance(error, ApiError) and error.err_code in _REFUSED_AS_TOO_LARGE)
