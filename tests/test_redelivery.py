"""Properties of the policy, whose cases are in spec-fixtures/redelivery.json, and the headers of dead letters."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import DecodeError
from ce_nats.redelivery import (
    Action,
    Backoff,
    DeadLetter,
    Decision,
    Outcome,
    Reason,
    RetryPolicy,
    decide,
    is_server_header,
)
from tests.support.tables import each

LETTER = DeadLetter(Reason.REJECTED, "Reject", "no such customer", "orders.paid", "ORDERS", "billing", 7, 3)


randoms = st.floats(0, 1, exclude_max=True)


@given(
    st.sampled_from(Outcome),
    st.integers(1, 10**9),
    st.integers(1, 10**9),
    st.floats(0, 1e9),
    st.floats(1, 1e9),
    st.floats(0, 1),
    randoms,
)
def test_delay_and_reason_match_the_action(outcome, deliveries, most, first, factor, jitter, random):
    """Only a retry has a delay, from zero to the limit; only a dead letter has a reason."""
    decision = decide(outcome, deliveries, RetryPolicy(most, Backoff(first, factor, 60, jitter)), random)
    assert (decision.action is Action.RETRY) or decision.delay == 0
    assert 0 <= decision.delay <= 60
    assert (decision.action is Action.DEAD_LETTER) == (decision.reason is not None)
    assert (decision.action is Action.HANDLE) == (outcome is Outcome.RECEIVED and deliveries <= most + 5)


@each(
    "make",
    [
        lambda: RetryPolicy(0),
        lambda: RetryPolicy(5, max_unfinished=4),
        lambda: RetryPolicy(backoff=[]),
        lambda: RetryPolicy(backoff=[1, -1]),
        lambda: RetryPolicy(backoff=[float("nan")]),
        lambda: Backoff(initial=-1),
        lambda: Backoff(maximum=-0.1),
        lambda: Backoff(factor=0.5),
        lambda: RetryPolicy(backoff=[1, float("inf")]),
        lambda: Backoff(initial=float("inf")),
        lambda: Backoff(maximum=float("inf")),
        lambda: Backoff(factor=float("inf")),
        lambda: Backoff(jitter=-0.1),
        lambda: Backoff(jitter=1.1),
        lambda: Backoff(jitter=float("nan")),
    ],
)
def test_invalid_policies_are_rejected(make):
    with pytest.raises(ValueError, match=r"must be .* got "):
        make()


def test_limits_of_policies_are_accepted():
    assert RetryPolicy(1, Backoff(0, 1, 0, 1), 1).delay(1) == 0
    assert RetryPolicy(backoff=[0, 0.5]).delay(1) == 0


def test_default_policy_has_eight_failures_and_five_more_deliveries_without_an_outcome():
    assert [decide(Outcome.FAILED, number, RetryPolicy()).action for number in (7, 8)] == ["retry", "dead-letter"]
    assert [decide(Outcome.RECEIVED, number, RetryPolicy()).action for number in (13, 14)] == ["handle", "dead-letter"]


@each(
    ("failures", "deliveries", "action"),
    [(1, 1, "retry"), (7, 12, "retry"), (8, 8, "dead-letter"), (1, 12, "retry"), (1, 13, "dead-letter")],
)
def test_failures_are_counted_and_deliveries_limit_them(failures, deliveries, action):
    decision = decide(Outcome.FAILED, deliveries, RetryPolicy(), failures=failures)
    assert decision.action == action
    assert decision.delay == (RetryPolicy().delay(failures) if action == "retry" else 0)


@each(("max_unfinished", "limit"), [(None, 8), (3, 3)])
def test_message_is_handled_up_to_the_limit_of_unfinished_deliveries(max_unfinished, limit):
    policy = RetryPolicy(3, max_unfinished=max_unfinished)
    assert policy.unfinished_limit == limit
    assert decide(Outcome.RECEIVED, limit, policy) == Decision(Action.HANDLE)
    assert decide(Outcome.RECEIVED, limit + 1, policy) == Decision(Action.DEAD_LETTER, 0, Reason.PROCESS_ENDED)


@each(
    ("outcome", "decision"),
    [
        (Outcome.DONE, Decision(Action.ACK)),
        (Outcome.MARKER, Decision(Action.ACK)),
        (Outcome.EXPIRED, Decision(Action.ACK)),
        (Outcome.RELEASED, Decision(Action.RETRY)),
        (Outcome.UNDECODABLE, Decision(Action.DEAD_LETTER, 0, Reason.UNDECODABLE)),
        (Outcome.REJECTED, Decision(Action.DEAD_LETTER, 0, Reason.REJECTED)),
        (Outcome.FAILED, Decision(Action.DEAD_LETTER, 0, Reason.EXHAUSTED)),
    ],
)
def test_decision_for_the_last_delivery(outcome, decision):
    assert decide(outcome, 3, RetryPolicy(3)) == decision


def test_delay_is_not_reduced_by_default():
    policy = RetryPolicy(backoff=Backoff(8, jitter=1))
    assert decide(Outcome.FAILED, 1, policy).delay == policy.delay(1) == policy.backoff.delay(1) == 8


def test_list_of_delays_is_copied():
    delays = [1, 2]
    policy = RetryPolicy(backoff=delays)
    delays[0] = 9
    assert policy.backoff == (1.0, 2.0)


@each(
    ("jitter", "random", "delays"),
    [
        (0, 0.9, [1, 2, 4, 5, 5]),
        (0.5, 0, [1, 2, 4, 5, 5]),
        (0.5, 0.5, [0.75, 1.5, 3, 3.75, 3.75]),
        (1, 0.75, [0.25, 0.5, 1, 1.25, 1.25]),
    ],
)
def test_jitter_reduces_the_delay(jitter, random, delays):
    """The limit applies before jitter, so that late delays differ, too."""
    policy = RetryPolicy(9, Backoff(1, 2, 5, jitter))
    assert [decide(Outcome.FAILED, number, policy, random).delay for number in range(1, 6)] == delays
    assert [policy.delay(number, random) for number in range(1, 6)] == delays


@given(randoms)
def test_default_jitter_is_half_of_the_delay(random):
    assert 0.5 <= Backoff().delay(1, random) <= 1


@given(randoms)
def test_listed_delays_have_no_jitter(random):
    assert [RetryPolicy(backoff=[1, 5]).delay(number, random) for number in (1, 2, 3)] == [1, 5, 5]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
names = st.text("abcXYZ-_0", min_size=1)
numbers = st.integers(1, 2**64 - 1)
# With the original, with a part of it, without it, and with a reference to it: is_complete, is_copied, time.
states = st.sampled_from(
    [(True, True, ""), (False, True, ""), (False, False, ""), (False, False, "2026-01-02T03:04:05Z")]
)


@given(
    st.builds(
        lambda state, *values: DeadLetter(*values, *state),
        *(states, st.sampled_from(Reason), texts, texts, texts, names, names, numbers, numbers),
    )
)
def test_headers_round_trip(letter):
    """Values are printable ASCII for any text of an exception, and are not attributes."""
    headers = letter.headers()
    assert DeadLetter.split(headers) == (letter, [])
    assert all(value.isascii() and value.isprintable() and " " not in value for _, value in headers)
    assert not any(name.lower().startswith("ce-") for name, _ in headers)


@each(
    ("state", "headers"),
    [
        ((), []),
        ((False,), [("Dead-Letter-Original", "gone")]),
        (
            (False, False, "2026-01-02T03:04:05Z"),
            [("Dead-Letter-Original", "not-copied"), ("Dead-Letter-Time", "2026-01-02T03:04:05Z")],
        ),
    ],
)
def test_headers_describe_reason_and_origin(state, headers):
    letter = DeadLetter(Reason.EXHAUSTED, "é", "a b", "s.ü", "S", "c", 7, 3, *state)
    assert letter.headers() == [
        ("Dead-Letter-Reason", "exhausted"),
        ("Dead-Letter-Error", "%C3%A9"),
        ("Dead-Letter-Text", "a%20b"),
        ("Dead-Letter-Subject", "s.%C3%BC"),
        ("Dead-Letter-Stream", "S"),
        ("Dead-Letter-Consumer", "c"),
        ("Dead-Letter-Sequence", "7"),
        ("Dead-Letter-Deliveries", "3"),
        *headers,
    ]
    assert DeadLetter.split(letter.headers()) == (letter, [])


@given(
    *(st.builds(DeadLetter, st.sampled_from(Reason), texts, texts, texts, names, names, numbers, numbers),) * 3,
)
def test_later_dead_letterings_round_trip(first, second, third):
    letter = replace(first, later=(second, third))
    headers = letter.headers()
    assert DeadLetter.split(headers) == (letter, [])
    assert headers[:-2] == first.headers()
    assert [name for name, _ in headers[-2:]] == ["Dead-Letter-Again"] * 2
    assert all(value.isascii() and value.isprintable() for _, value in headers)


@each(
    ("value", "text"),
    [
        ("rejected", "Dead-Letter-Again must have 8 parts, got 'rejected'"),
        ("no E t s S c 1 1", "Dead-Letter-Reason must be "),
        ("rejected E t s S c 1 x", "Dead-Letter-Deliveries must be an integer"),
        ("rejected E t s  c 1 1", "Dead-Letter-Stream must not be empty"),
    ],
)
def test_invalid_later_dead_letterings_are_rejected(value, text):
    with pytest.raises(DecodeError, match=text) as info:
        DeadLetter.split([*LETTER.headers(), ("Dead-Letter-Again", value)])
    assert info.value.code == "invalid-header-value"


def test_only_reason_stream_and_numbers_are_required():
    headers = [(f"Dead-Letter-{name}", value) for name, value in (("Reason", "rejected"), ("Stream", "S"))]
    numbers = [("Dead-Letter-Sequence", "0"), ("Dead-Letter-Deliveries", str(2**64 - 1))]
    letter = DeadLetter(Reason.REJECTED, "", "", "", "S", "", 0, 2**64 - 1)
    assert DeadLetter.split([*headers, *numbers]) == (letter, [])


@each(
    ("is_copied", "time", "expected"), [(True, "", False), (True, "T", False), (False, "", False), (False, "T", True)]
)
def test_letter_without_a_copy_refers_to_the_original_by_its_time(is_copied, time, expected):
    letter = replace(LETTER, is_complete=False, is_copied=is_copied, time=time)
    assert letter.is_reference is expected


@each("value", ["", "x", "-1", str(2**64), "1" * 5000])
@each("name", ["Dead-Letter-Sequence", "Dead-Letter-Deliveries"])
def test_numbers_out_of_range_are_rejected(name, value):
    headers = [(known, value if known == name else old) for known, old in LETTER.headers()]
    with pytest.raises(DecodeError, match=rf"{name} must be an integer from 0 to 2\*\*64 - 1, got ") as info:
        DeadLetter.split(headers)
    assert info.value.code == "invalid-header-value"
    assert len(str(info.value)) < 300


def test_long_text_is_cut_and_surrogates_are_replaced():
    letter = DeadLetter(Reason.EXHAUSTED, "E\udfff", "\ud800" + "a" * 1000, "s\ud800", "S", "", 1, 1)
    read = DeadLetter.split(letter.headers())[0]
    assert (read.error, read.text, read.subject) == ("E?", "?" + "a" * 299, "s?")


def test_headers_of_the_original_are_separated():
    """The first message id is that of the dead letter; the second, and kept headers, are of the original."""
    kept = [
        ("Dead-Letter-Header", "Nats-Rollup all"),
        ("Dead-Letter-Header", "Dead-Letter-Header Nats-TTL 1h"),
        ("Dead-Letter-Header", "Nats-Empty"),
    ]
    originals = [("ce-id", "1"), ("Nats-Msg-Id", "theirs"), ("a", "1"), ("a", "2")]
    letter, headers = DeadLetter.split([("Nats-Msg-Id", "own"), *LETTER.headers(), *kept, *originals])
    assert letter == LETTER
    assert headers == [*originals, ("Nats-Rollup", "all"), ("Dead-Letter-Header", "Nats-TTL 1h"), ("Nats-Empty", "")]


def test_first_of_repeated_headers_describes_the_letter():
    assert DeadLetter.split([*LETTER.headers(), ("Dead-Letter-Stream", "OTHER")]) == (LETTER, [])


@each("missing", ["Reason", "Stream", "Sequence", "Deliveries"])
def test_missing_header_is_an_error(missing):
    headers = [(name, value) for name, value in LETTER.headers() if name != f"Dead-Letter-{missing}"]
    with pytest.raises(DecodeError, match=f"a dead letter must have a header Dead-Letter-{missing}") as info:
        DeadLetter.split(headers)
    assert (info.value.code, info.value.header) == ("missing-attribute", f"Dead-Letter-{missing}")


@each(
    ("name", "value", "message"),
    [
        ("Reason", "boredom", "Dead-Letter-Reason must be "),
        ("Stream", "", "Dead-Letter-Stream must not be empty"),
        ("Sequence", "x", "Dead-Letter-Sequence must be "),
        ("Text", "%", "'%'"),
        ("Error", "%FF", "'%FF'"),
        ("Subject", "%FF", "'%FF'"),
    ],
)
def test_invalid_value_is_an_error(name, value, message):
    with pytest.raises(DecodeError, match=message):
        DeadLetter.split([(f"Dead-Letter-{name}", value), *LETTER.headers()])


@each(
    ("name", "expected"),
    [
        ("Nats-Rollup", True),
        ("Nats-Expected-Last-Sequence", True),
        ("Nats-TTL", True),
        ("Nats-Whatever-Comes-Next", True),
        ("Dead-Letter-Reason", True),
        ("Nats-Msg-Id", False),
        ("Nats-Stream-Source", True),
        ("nats-rollup", False),
        ("ce-id", False),
        ("traceparent", False),
        ("NatsRollup", False),
    ],
)
def test_headers_for_the_server(name, expected):
    assert is_server_header(name) is expected


def test_default_delays_grow_up_to_five_minutes():
    assert [Backoff().delay(number) for number in range(1, 8)] == [1, 4, 16, 64, 256, 300, 300]


def test_delays_may_have_any_limit():
    assert Backoff(initial=0).delay(3) == 0
    assert [Backoff(initial=0.2, maximum=0.5, factor=1).delay(number) for number in (1, 3)] == [0.2, 0.2]
    assert [Backoff(initial=0.2, maximum=0.9).delay(number) for number in (1, 2, 3)] == [0.2, 0.8, 0.9]
    assert Backoff(maximum=0).delay(1) == 0


@each("kind", [Action, Outcome, Reason])
def test_text_of_a_member_is_its_name(kind):
    """Metrics, logs and headers contain it."""
    assert [str(one) for one in kind] == [one.name.lower().replace("_", "-") for one in kind]
    assert all(one == str(one) for one in kind)


def test_any_number_of_deliveries_has_a_delay():
    """Powers that are out of range for a float."""
    assert Backoff().delay(10_000) == 300
    assert Backoff().delay(10_000, 0.5) == 225
    assert Backoff(initial=0).delay(10_000) == 0
    assert Backoff(factor=1).delay(10_000) == 1
