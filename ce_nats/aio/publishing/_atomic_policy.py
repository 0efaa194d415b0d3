"""
What follows an attempt to store an atomic batch that was not acknowledged: a pure function.

The last message of a batch commits it, and only this message may leave the outcome unknown. Then the stream is searched
for the batch, which is resent if that is safe: it was not stored, or the stream would refuse a copy.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from ...errors import ApiError, DeliveryError, ErrorCode
from .. import _server_codes as codes

MIN_PAUSE_SECONDS: Final = 0.1
_MAX_PAUSE_SECONDS: Final = 1.0
_MAX_DOUBLINGS: Final = 10
# Errors of this client, or without a stream, after which the batch may be stored if it is resent.
_RETRIED_CODES: Final = (ErrorCode.NO_RESPONDERS, ErrorCode.TIMEOUT, ErrorCode.BUFFER_FULL)
# The batch was not stored, and may be if it is resent.
UNAVAILABLE: Final = (codes.TOO_MANY_REQUESTS, codes.ATOMIC_INCOMPLETE, codes.ATOMIC_TOO_MANY)
_RETRIED: Final = (codes.DUPLICATE_IN_PROCESS, codes.UNKNOWN_LAST_SEQUENCE, *UNAVAILABLE)
# Refusals that earlier attempts get as well, if they arrive later.
_REFUSED_AGAIN: Final = (codes.ATOMIC_DUPLICATE, codes.WRONG_LAST_SEQUENCE)


class Failed(NamedTuple):
    """
    An attempt without an acknowledgement.

    Attributes:
        error: The error.
        position: Position of the message that has caused it, from 0; None if it was the batch as a whole.
        may_be_stored: Whether the stream may have stored the batch.
    """

    error: DeliveryError
    position: int | None = None
    may_be_stored: bool = False


class History(NamedTuple):
    """
    The attempts so far. Times are in seconds of ``time.monotonic()``.

    Attributes:
        began: Time of the first attempt.
        give_up: Time at which retries end.
        ack_timeout: Seconds for which an attempt waits for a reply.
        refuses_copies: Whether the stream refuses a copy of the batch at any time, for its expected sequence.
        copies_until: Time until which it refuses one for the ``Nats-Msg-Id`` of an event.
        unknown: Ids of attempts that may be stored.
        resent: Number of attempts after the first one.
    """

    began: float
    give_up: float
    ack_timeout: float
    refuses_copies: bool = False
    copies_until: float = 0.0
    unknown: tuple[str, ...] = ()
    resent: int = 0


class Looked(Enum):
    """Result of a search of the stream for the batch."""

    NOT_YET = auto()
    UNREADABLE = auto()
    """The stream could not be read."""
    ABSENT = auto()
    """It is not in the stream; it may have been removed, or arrive later."""
    NEVER = auto()
    """It is not in the stream, which has all messages since the first attempt."""


class Resend(NamedTuple):
    """Send the batch again after a pause, in seconds."""

    pause: float


class Look(NamedTuple):
    """
    Search the stream for the batch.

    Attributes:
        is_everywhere: Whether to search all subjects, and not only that of the first message.
        is_final: Whether to find out if messages were removed: if not, and the batch is absent, it will not be stored.
    """

    is_everywhere: bool
    is_final: bool


class Fail(Enum):
    """Raise an error."""

    UNKNOWN = auto()
    """The batch may be stored."""
    UNSTORED = auto()
    """It is not stored, and the time for retries has ended."""
    REFUSED = auto()
    """The stream has refused it."""


Step: TypeAlias = Resend | Look | Fail


def decide(
    failed: Failed, history: History, now: float, *, looked: Looked = Looked.NOT_YET, is_closed: bool = False
) -> Step:
    """
    Return the next step after an attempt.

    ``history`` has the id of the attempt if it may be stored. ``looked`` is the result of an earlier step :class:`Look`
    after the same attempt. ``is_closed`` is true if nothing can be sent any more.
    """
    is_refusal = not (failed.may_be_stored or _is_retried(failed.error, history, now))
    if history.unknown and (is_refusal or failed.may_be_stored):
        if looked is Looked.NOT_YET:
            return Look(is_everywhere=is_refusal, is_final=is_refusal and _is_for_all_attempts(failed.error))
        if looked is Looked.UNREADABLE or (is_refusal and looked is not Looked.NEVER):
            return Fail.UNKNOWN
    if is_refusal:
        return Fail.REFUSED
    if not is_closed and _may_resend(history, now):
        # A stream keeps an incomplete batch for 10 seconds, and has room for 50.
        return Resend(min(MIN_PAUSE_SECONDS * 2.0 ** min(history.resent, _MAX_DOUBLINGS), _MAX_PAUSE_SECONDS))
    return Fail.UNKNOWN if history.unknown else Fail.UNSTORED


def _is_retried(error: DeliveryError, history: History, now: float) -> bool:
    """Return whether a batch that this attempt has not stored may be stored if it is resent."""
    if not isinstance(error, ApiError):
        return error.code in _RETRIED_CODES
    if error.code is ErrorCode.INVALID_BATCH:
        return False
    if error.err_code == codes.UNKNOWN_LAST_SEQUENCE and not history.unknown:
        # A batch that contradicts itself, by the stream's transform of subjects, gets the same error.
        return now - history.began < history.ack_timeout
    return error.err_code in _RETRIED


def _is_for_all_attempts(error: DeliveryError) -> bool:
    """Return whether the stream will refuse earlier attempts for the same reason."""
    return isinstance(error, ApiError) and error.err_code in _REFUSED_AGAIN


def _may_resend(history: History, now: float) -> bool:
    """Return whether there is time to resend, and a copy would be refused if the batch is stored."""
    if now + MIN_PAUSE_SECONDS >= history.give_up:
        return False
    return not history.unknown or history.refuses_copies or now + history.ack_timeout < history.copies_until
