"""What follows an attempt to store an atomic batch, as a table; the same over a server is in test_atomic_commit.py."""

from ce_nats import ApiError, DeliveryError, ErrorCode
from ce_nats.aio import _server_codes as codes
from ce_nats.aio.publishing._atomic_policy import Fail, Failed, History, Look, Looked, Resend, decide
from tests.support.tables import each

BEGAN, NOW = 100.0, 101.0
FRESH = History(BEGAN, BEGAN + 30, 5.0)
UNKNOWN = FRESH._replace(unknown=("a",))
REFUSES = UNKNOWN._replace(refuses_copies=True)
HAS_ID = UNKNOWN._replace(copies_until=BEGAN + 120)
RESEND = Resend(0.1)
ONE, ALL, FINAL = Look(False, False), Look(True, False), Look(True, True)


def of_client(code, *, may_be_stored=False):
    return Failed(DeliveryError(code, "a: x"), may_be_stored=may_be_stored)


def of_stream(number, code=ErrorCode.PUBLISH_REFUSED):
    error = ApiError(code, "a: x")
    error.err_code = number
    return Failed(error)


LOST = of_client(ErrorCode.TIMEOUT, may_be_stored=True)
CLOSED = of_client(ErrorCode.CONNECTION_CLOSED, may_be_stored=True)
UNSENT = of_client(ErrorCode.TIMEOUT)
DENIED = of_client(ErrorCode.PERMISSION_DENIED)
BUSY = of_stream(codes.TOO_MANY_REQUESTS, ErrorCode.TEMPORARILY_UNAVAILABLE)
WRONG = of_stream(codes.WRONG_LAST_SEQUENCE)
DUPLICATE = of_stream(codes.ATOMIC_DUPLICATE)
CONTRADICTION = of_stream(codes.UNKNOWN_LAST_SEQUENCE)
DISABLED = of_stream(codes.ATOMIC_DISABLED)
OTHER_STREAM = of_stream(codes.TOO_MANY_REQUESTS, ErrorCode.INVALID_BATCH)


@each(
    ("failed", "history", "expected"),
    [
        # Not stored, and it may be if it is resent.
        (UNSENT, FRESH, RESEND),
        (of_client(ErrorCode.NO_RESPONDERS), FRESH, RESEND),
        (of_client(ErrorCode.BUFFER_FULL), FRESH, RESEND),
        (BUSY, FRESH, RESEND),
        (of_stream(codes.ATOMIC_INCOMPLETE), FRESH, RESEND),
        (of_stream(codes.ATOMIC_TOO_MANY), FRESH, RESEND),
        (of_stream(codes.DUPLICATE_IN_PROCESS), FRESH, RESEND),
        (CONTRADICTION, FRESH, RESEND),
        # Not stored, and not worth a retry.
        (DENIED, FRESH, Fail.REFUSED),
        (of_client(ErrorCode.INCOMPATIBLE_CONFIG), FRESH, Fail.REFUSED),
        (WRONG, FRESH, Fail.REFUSED),
        (DISABLED, FRESH, Fail.REFUSED),
        (OTHER_STREAM, FRESH, Fail.REFUSED),
        (CONTRADICTION, FRESH._replace(ack_timeout=0.9), Fail.REFUSED),
        # The outcome of this attempt, or of one before, is unknown.
        (LOST, UNKNOWN, ONE),
        (CLOSED, UNKNOWN, ONE),
        (DENIED, UNKNOWN, ALL),
        (DISABLED, UNKNOWN, ALL),
        (WRONG, UNKNOWN, FINAL),
        (DUPLICATE, UNKNOWN, FINAL),
        # It is not searched again after an attempt that was not stored, and is resent if a copy would be refused.
        (BUSY, REFUSES, RESEND),
        (BUSY, HAS_ID, RESEND),
        (BUSY, UNKNOWN, Fail.UNKNOWN),
        (CONTRADICTION, REFUSES._replace(ack_timeout=0.9), RESEND),
    ],
)
def test_step_after_an_attempt(failed, history, expected):
    assert decide(failed, history, NOW) == expected


@each(
    ("failed", "history", "looked", "expected"),
    [
        (LOST, UNKNOWN, Looked.UNREADABLE, Fail.UNKNOWN),
        (LOST, REFUSES, Looked.UNREADABLE, Fail.UNKNOWN),
        (LOST, UNKNOWN, Looked.ABSENT, Fail.UNKNOWN),
        (LOST, REFUSES, Looked.ABSENT, RESEND),
        (LOST, HAS_ID, Looked.ABSENT, RESEND),
        (WRONG, UNKNOWN, Looked.UNREADABLE, Fail.UNKNOWN),
        (WRONG, REFUSES, Looked.ABSENT, Fail.UNKNOWN),
        (WRONG, UNKNOWN, Looked.NEVER, Fail.REFUSED),
        (DUPLICATE, HAS_ID, Looked.NEVER, Fail.REFUSED),
        (DENIED, HAS_ID, Looked.ABSENT, Fail.UNKNOWN),
    ],
)
def test_step_after_a_search(failed, history, looked, expected):
    assert decide(failed, history, NOW, looked=looked) == expected


@each(
    ("history", "now", "is_closed", "expected"),
    [
        (FRESH, 129.8, False, RESEND),
        (FRESH, 129.9, False, Fail.UNSTORED),
        (FRESH, NOW, True, Fail.UNSTORED),
        (REFUSES, 129.8, False, RESEND),
        (REFUSES, 129.9, False, Fail.UNKNOWN),
        (REFUSES, NOW, True, Fail.UNKNOWN),
        (UNKNOWN._replace(copies_until=106.1), NOW, False, RESEND),
        (UNKNOWN._replace(copies_until=106.0), NOW, False, Fail.UNKNOWN),
    ],
)
def test_batch_is_resent_as_long_as_that_is_safe(history, now, is_closed, expected):
    """By ids, only as long as the stream would detect a copy that arrives after the timeout of the attempt."""
    assert decide(BUSY, history, now, is_closed=is_closed) == expected


@each(("resent", "pause"), [(0, 0.1), (1, 0.2), (3, 0.8), (4, 1.0), (10_000, 1.0)])
def test_pauses_double_up_to_a_second(resent, pause):
    assert decide(UNSENT, FRESH._replace(resent=resent), NOW) == Resend(pause)
