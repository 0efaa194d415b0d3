"""
The originals of dead letters, as they are published again, and where they may be published to.

Every client that may publish to the subject for dead letters can write one, with any subject and any stream in it. So
an original is published only to a subject on which its stream listens, or to one that the caller allows, and never to
one on which the server acts.
"""

from __future__ import annotations

from collections.abc import Sequence

from nats.js import JetStreamContext

from ..errors import CeNatsError, EncodeError, ErrorCode, preview
from ..message import NatsMessage, StoredMessage
from ..redelivery import BLOCK_HEADER, MSG_ID, DeadLetter
from ..subjects import check_name, check_pattern, covers
from ._nats import client_of
from .foreign_subjects import check_foreign_subject
from .replay import framed
from .streams import StreamApi, nanoseconds


class Originals:
    """
    Reads the originals of dead letters. What is known of their streams is kept.

    Args:
        js: From ``nc.jetstream()``.
        allowed: Patterns of subjects that originals may be published to; None allows those on which the stream listens
            that a dead letter names.
        timeout: Seconds to wait for each answer of JetStream's API.

    Raises:
        EncodeError: ``invalid-subject``: a pattern is not valid.
    """

    def __init__(self, js: JetStreamContext, allowed: Sequence[str] | None, timeout: float) -> None:
        for pattern in allowed or ():
            check_pattern(pattern)
        self._nc = client_of(js)
        self._api = StreamApi.of(js, timeout)
        self._allowed = allowed
        self._found: dict[str, list[str] | CeNatsError] = {}

    async def outgoing(self, stored: StoredMessage) -> tuple[NatsMessage, bytes]:
        """
        The message that a dead letter was, as it is published again, and its header block.

        Raises:
            CeNatsError: As :func:`~ce_nats.aio.deadletter.requeue` does.
        """
        dead_letter, headers = DeadLetter.split(stored.headers)
        if not dead_letter.is_complete or any(name == BLOCK_HEADER for name, _ in stored.headers):
            raise EncodeError(ErrorCode.INVALID_MESSAGE, "the original of the dead letter is incomplete")
        await self._check_subject(dead_letter)
        identifier = f"requeued:{stored.stream}:{stored.sequence}:{nanoseconds(stored.timestamp)}"
        kept = [(name, value) for name, value in headers if not name.startswith("Nats-")]
        copy = stored._replace(subject=dead_letter.subject, headers=[*kept, (MSG_ID, identifier)])
        return framed(self._nc, copy)

    async def _check_subject(self, dead_letter: DeadLetter) -> None:
        subject, stream = dead_letter.subject, dead_letter.stream
        allowed = self._allowed
        if allowed is None:
            # Before the server is asked: the letter has chosen the name of the stream, too.
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
                found = error  # not asked again for each further dead letter
            self._found[stream] = found
        if isinstance(found, CeNatsError):
            raise found
        return found
