"""Numeric arguments: NaN, infinities, booleans and text are refused before anything is done."""

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from cloudevents.core.v1.event import CloudEvent

from ce_nats import EncodeError, to_nats_message
from ce_nats._numbers import (
    MAX_SECONDS,
    check_count,
    check_integer,
    check_number,
    check_optional_seconds,
    check_positive,
    check_seconds,
)
from ce_nats.aio import _connect
from ce_nats.capture import ParquetParts
from ce_nats.conformance import Command
from ce_nats.extensions.expiry import is_expired
from ce_nats.redelivery import Backoff, RetryPolicy
from ce_nats.testing import FakeDelivery, NatsCluster, NatsServer
from ce_nats.wire.nats import FrameReader, decode_frames
from tests.support.tables import each

NO_NUMBERS = [math.nan, math.inf, -math.inf, True, "5", None, [1], 10**400]
EVENT = CloudEvent({"id": "1", "source": "/a", "type": "a"})


@each("value", [*NO_NUMBERS, -1, MAX_SECONDS * 2])
def test_what_is_not_a_number_of_seconds_is_refused(value):
    with pytest.raises(ValueError, match=r"^timeout must be a number of seconds from 0 to 9223372036, got .+"):
        check_seconds("timeout", value)


def test_numbers_of_all_types_are_accepted():
    for value in (0, 0.5, Decimal("0.5"), Fraction(1, 3), MAX_SECONDS):
        check_seconds("timeout", value)
    check_seconds("leeway", -5, -10)
    check_optional_seconds("timeout", None)
    check_number("factor", 10**300, 1)
    check_positive("rate", Fraction(1, 3))
    check_count("window", 1)
    check_integer("start", -5)


@each(
    ("call", "text"),
    [
        (lambda: check_number("jitter", 2, 0, 1), "jitter must be a number from 0 to 1, got 2"),
        (lambda: check_number("factor", math.nan, 1), "factor must be a number 1 or more, got nan"),
        (lambda: check_positive("rate", 0), "rate must be above 0, got 0"),
        (lambda: check_positive("rate", math.inf), "rate must be a number, got inf"),
        (lambda: check_count("window", 0), "window must be 1 or more, got 0"),
        (lambda: check_count("window", 1.5), "window must be an integer, got 1.5"),
        (lambda: check_count("window", True), "window must be an integer, got True"),
        (lambda: check_integer("start", math.nan), "start must be an integer, got nan"),
        (lambda: check_optional_seconds("timeout", math.nan), "timeout must be a number of seconds from 0 to"),
    ],
)
def test_errors_name_the_argument(call, text):
    with pytest.raises(ValueError, match=f"^{text}"):
        call()


ARGUMENTS = {
    "leeway": lambda value: is_expired(EVENT, leeway=value),
    "initial": lambda value: Backoff(initial=value),
    "factor": lambda value: Backoff(factor=value),
    "maximum": lambda value: Backoff(maximum=value),
    "jitter": lambda value: Backoff(jitter=value),
    "backoff": lambda value: RetryPolicy(backoff=[1, value]),
    "max_deliveries": lambda value: RetryPolicy(max_deliveries=value),
    "max_unfinished": lambda value: RetryPolicy(max_unfinished=value or 1.5),
    "rows": lambda value: ParquetParts("a.parquet", rows=value),
    "timeout of a command": lambda value: Command("true", timeout=value),
    "timeout of a server": lambda value: NatsServer(timeout=value),
    "timeout of a cluster": lambda value: NatsCluster(timeout=value),
    "size": lambda value: NatsCluster(value),
    "sequence": lambda value: FakeDelivery(to_nats_message(EVENT, "a"), sequence=value),
    "deliveries": lambda value: FakeDelivery(to_nats_message(EVENT, "a"), deliveries=value),
    "max_control_line": lambda value: FrameReader(max_control_line=value),
    "max_control_line of frames": lambda value: decode_frames(b"", max_control_line=value),
}


@each("name", ARGUMENTS)
def test_arguments_are_checked(name):
    for value in (math.nan, None):
        with pytest.raises(ValueError, match=f"^{name.split()[0]} must be "):
            ARGUMENTS[name](value)


@pytest.mark.parametrize("value", [math.nan, math.inf, True, "5"], ids=repr)
@pytest.mark.parametrize("name", ["connect_timeout", "max_reconnect_attempts"])
async def test_arguments_of_connect_are_checked(name, value):
    with pytest.raises(EncodeError, match=f"^invalid-option: {name} must be "):
        await _connect.connect("nats://127.0.0.1:1", **{name: value})


@pytest.mark.parametrize("delay", [math.nan, math.inf, -1, True, 1e300], ids=repr)
async def test_delivery_with_an_invalid_delay_is_not_settled(delay):
    """The delivery can still be settled; an exception of its block redelivers it."""
    delivery = FakeDelivery(to_nats_message(EVENT, "a"))
    with pytest.raises(ValueError, match=r"^delay must be a number of seconds from 0 to .+"):
        await delivery.nak(delay)
    assert delivery.decision is None
    await delivery.nak(5)
    assert delivery.decision.delay == 5
