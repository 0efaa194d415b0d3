"""Store the dead letters of a consumer, and recognize those that it reads again."""

from __future__ import annotations

from collections import OrderedDict

from nats.js import JetStreamContext

from ...errors import CeNatsError, DeliveryError, text_of
from ...message import MSG_ID
from ...redelivery import DeadLetter, Reason
from .._observer import OutcomeKind
from ..link._client import api_timeout
from ._attempt import Attempt
from ._dead_letters import keeps_terminated, message_id, store
from ._handled import limit


class Letters:
    """
    The dead letters of a consumer.

    ``consumer`` is its name.

    Attributes:
        subject: Subject that they are published to; None if originals are terminated without dead letters.
    """

    def __init__(self, js: JetStreamContext, subject: str | None, consumer: str) -> None:
        self.subject = subject
        self._js = js
        self._consumer = consumer
        self._stored: OrderedDict[str, None] = OrderedDict()  # by Nats-Msg-Id

    @property
    def ending(self) -> str:
        """Outcome of a message without a further attempt, as a text for the log."""
        return "terminated without a dead letter" if self.subject is None else f"dead-lettered to {self.subject}"

    @property
    def kind(self) -> OutcomeKind:
        """Outcome of a message without a further attempt."""
        return OutcomeKind.TERMINATED if self.subject is None else OutcomeKind.DEAD_LETTERED

    def includes(self, attempt: Attempt) -> bool:
        """Return whether a message is a dead letter of this consumer, which reads it again."""
        return (attempt.message.headers or {}).get(MSG_ID, "") in self._stored

    async def keeps_terminated(self, attempt: Attempt) -> bool:
        """Return whether a message stays in its stream when it is terminated; False if that is unknown."""
        try:
            return await keeps_terminated(self._js, attempt.stream)
        except DeliveryError:
            return False

    async def store(self, attempt: Attempt, reason: Reason, error: BaseException | None) -> DeadLetter:
        """
        Store the dead letter of a message, and return it as stored.

        Raises:
            DeliveryError, EncodeError: As :func:`~._dead_letters.store` does.
        """
        assert self.subject is not None
        dead_letter = DeadLetter(
            reason=reason,
            error=_code(error),
            text=_text(error),
            subject=attempt.subject,
            stream=attempt.stream,
            consumer=self._consumer,
            sequence=attempt.sequence,
            deliveries=attempt.deliveries,
        )
        self._stored[message_id(dead_letter, attempt.message)] = None
        limit(self._stored)
        return await store(self._js, self.subject, dead_letter, attempt.message, timeout=api_timeout(self._js))


def _code(error: BaseException | None) -> str:
    if error is None:
        return ""
    return str(error.code) if isinstance(error, CeNatsError) else type(error).__name__


def _text(error: BaseException | None) -> str:
    if error is None:
        return ""
    return error.message if isinstance(error, CeNatsError) else text_of(error)
