"""Filters of messages: what headers alone decide is what the decoded event decides."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ce_nats import CeNatsError, ContentMode, cesql
from ce_nats.aio.core._raw_decoder import raw_decoder
from ce_nats.cesql._messages import MessageFilter
from ce_nats.wire.nats import encode_header_block
from tests.support.expressions import TEXTS

decode = raw_decoder()
REQUIRED = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/eu/x"), ("ce-type", "t")]
VALUES = st.sampled_from(
    (
        *("gold", "silver", "1.0", "0.3", "7", "-1", "true", "", " ", "a b", "a%20b", "%", "%FF", '"x"', "é", "\x7f"),
        *("2024-02-29T01:02:03Z", "2023-02-29T01:02:03Z", "2024-04-31T00:00:00Z", "2024-12-31T23:59:60Z"),
        *("2024-01-01T00:00:00.1234567890Z", "2024-01-01t00:00:00z", "text/plain", "text/", "a:b", "a b:c"),
    )
)
NAMES = st.sampled_from(
    (
        *("ce-id", "CE-ID", "ce-source", "ce-type", "ce-tier", "ce-Tier", "ce-hops", "ce-time", "ce-subject", "Other"),
        *("ce-datacontenttype", "ce-dataschema", "ce-specversion", "Content-Type", "KV-Operation", "ce-", "ce-a_b"),
    )
)


@given(
    text=TEXTS | st.sampled_from(("tier = 'gold'", "tier != 'gold'", "EXISTS time", "time LIKE '%Z'", "FALSE")),
    more=st.lists(st.tuples(NAMES, VALUES), max_size=4),
    order=st.randoms(use_true_random=False),
)
@example(text="FALSE", more=[("ce-time", "2023-02-29T01:02:03Z")], order=None)
@example(text="FALSE", more=[("Content-Type", "application/cloudevents+json")], order=None)
@example(text="FALSE", more=[("ce-tier", "a"), ("CE-Tier", "a")], order=None)
def test_headers_decide_as_the_event_does(text: str, more: list[tuple[str, str]], order: Any) -> None:
    """A dropped message is a valid event that does not pass."""
    try:
        expression = cesql.compile(text)
    except cesql.ParseError:
        assume(False)
    headers = [*REQUIRED, *more]
    if order is not None:
        order.shuffle(headers)
    try:
        block = encode_header_block(headers)
    except CeNatsError:
        assume(False)
    found = MessageFilter(expression, "test")
    found._to_log = 0  # otherwise the first errors are logged with the event
    for _ in range(2):  # with a new sequence of names, and with a known one
        if found.decision(block) is False:
            assert not expression.matches(decode(b"", block))


@pytest.mark.parametrize(
    ("text", "is_dropped"),
    [
        ("tier = 'silver'", True),
        ("tier = 'gold'", False),
        ("hops > 7", True),
        ("time LIKE '2025%'", True),
        ("EXISTS time AND hops = 7", False),
        ("tier", True),
        ("tier = 'a b'", True),
    ],
)
def test_plain_messages_are_decided_by_their_headers(text: str, is_dropped: bool) -> None:
    more = [("ce-tier", "gold"), ("ce-hops", "7"), ("ce-time", "2024-02-28T01:02:03.5Z"), ("Trace", "x y")]
    block = encode_header_block([*REQUIRED, *more])
    found = MessageFilter(cesql.compile(text), "test")
    assert found.decision(block) is not is_dropped
    assert found.passes(decode(b"", block)) is not is_dropped


@pytest.mark.parametrize(
    "options",
    [
        {"mode": ContentMode.STRUCTURED},
        {"dialect": "sdk-go"},
        {"extension_types": {"tier": int}},
        {"reads_headers": False},
    ],
)
def test_other_options_need_the_event(options: dict[str, Any]) -> None:
    block = encode_header_block([*REQUIRED, ("ce-tier", "gold")])
    assert MessageFilter(cesql.compile("tier = 'x'"), "test").decision(block) is False
    assert MessageFilter(cesql.compile("tier = 'x'"), "test", **options).decision(block) is None
    assert MessageFilter(cesql.compile("EXISTS 3d"), "test").decision(block) is None


def test_flood_of_names() -> None:
    """Only some sequences of names are remembered; messages with others are decoded."""
    found = MessageFilter(cesql.compile("tier = 'x'"), "test")
    decisions = [
        found.decision(encode_header_block([*REQUIRED, ("ce-tier", "gold"), (f"Name-{number}", "")]))
        for number in range(200)
    ]
    assert decisions[:2] == [False, False]
    assert decisions.count(None) > 100


def test_values_decide_whatever_was_decided_before() -> None:
    """Of many values, of values that repeat, in the order of headers, and of long ones."""
    expression = cesql.compile("tier = 'x' OR hops = 7 OR region = 'eu'")
    found = MessageFilter(expression, "test")
    found._to_log = 0
    for number in (*range(600), *range(600)):
        tier, hops = ("ce-tier", "x" if number % 5 == 0 else "7"), ("ce-hops", f"{number}")
        for more in ([tier, hops], [hops, tier], [tier, hops, ("Trace", "y" * 5000)], [tier]):
            block = encode_header_block([*REQUIRED, *more])
            assert found.decision(block) is expression.matches(decode(b"", block))


def test_functions_of_the_program_are_called_for_each_message() -> None:
    """They may have another result later."""
    functions, allowed = cesql.Functions(), {"gold"}

    @functions.add
    def is_allowed(tier: str) -> bool:
        return tier in allowed

    found = MessageFilter(cesql.compile("is_allowed(tier)", functions=functions), "test")
    block = encode_header_block([*REQUIRED, ("ce-tier", "gold")])
    assert found.decision(block) is True
    allowed.clear()
    assert found.decision(block) is False


def test_other_blocks() -> None:
    """Without headers, with a status, or not ASCII: the message is decoded."""
    found = MessageFilter(cesql.compile("FALSE"), "test")
    whole = encode_header_block(REQUIRED)
    assert found.decision(whole) is False
    for block in (None, b"", b"NATS/1.0 503\r\n\r\n", whole[:-2], whole.replace(b"/eu/x", "é".encode())):
        assert found.decision(block) is None
