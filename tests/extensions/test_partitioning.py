"""Keys of events, and partition numbers that equal those of the server."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nats.js.api import SubjectTransform

from ce_nats import EncodeError, SubjectTemplate, aio, to_nats_message
from ce_nats.extensions.partitioning import partition_key
from ce_nats.subjects import partition
from ce_nats.testing import FakeDelivery
from tests.support.broker import server
from tests.support.strategies import plain_event, refused
from tests.support.tables import each

__all__ = ["server"]

COUNTS = (1, 2, 7, 8, 1000, 2**31 - 1)
TOKENS = st.text(
    st.sampled_from("-_%aZ0\u00e9\u20ac\U0001f600") | st.characters(codec="utf-8", categories=("L", "N", "P")),
    min_size=1,
).filter(lambda text: not set(text) & set(".*> \x7f"))


def test_key_is_the_partitionkey():
    assert partition_key(plain_event(partitionkey="customer 7")) == "customer 7"


@each(
    ("attributes", "key"),
    [({}, "/s"), ({"subject": "x"}, "/s x"), ({"subject": ""}, "/s "), ({"partitionkey": "", "subject": "x"}, "/s x")],
)
def test_key_is_source_and_subject_without_a_partitionkey(attributes, key):
    assert partition_key(plain_event(source="/s", **attributes)) == key


def test_key_of_a_delivery_is_that_of_its_event():
    assert partition_key(FakeDelivery(to_nats_message(plain_event(partitionkey="7"), "a"))) == "7"
    assert partition_key(plain_event(partitionkey="7", event="other")) == "7"


def test_key_of_an_event_with_a_field_named_event_is_its_own():
    event = plain_event(partitionkey="7")
    event.event = plain_event(partitionkey="8")
    assert partition_key(event) == "7"


@each(
    ("value", "code", "attribute"),
    [
        (plain_event(source=None), "missing-attribute", "source"),
        (plain_event(source=""), "missing-attribute", "source"),
        (plain_event(partitionkey=1.5), "invalid-attribute-type", "partitionkey"),
        (plain_event(source=1.5), "invalid-attribute-type", "source"),
        (plain_event(subject=1.5), "invalid-attribute-type", "subject"),
        (None, "invalid-message", None),
        (SimpleNamespace(event=None), "invalid-message", None),
    ],
)
def test_objects_without_a_key_are_errors(value, code, attribute):
    assert refused(EncodeError, code, partition_key, value).attribute == attribute


async def stored_subjects(js, subjects):
    """Publish to subjects, and return the subjects under which the stream stores the messages."""
    first = (await asyncio.gather(*[js.publish(subject, b"") for subject in subjects]))[0].seq
    found = {}
    for number in range(first, first + len(subjects)):
        message = await js.get_msg("NUMBERED", number)
        *_, one, other = message.subject.split(".")
        found[f"in.{one}.{other}"] = message.subject
    return [found[subject] for subject in subjects]


@pytest.fixture(scope="module")
def numbered(server):
    """A stream whose server computes partition numbers: of the second token, of both, and of the whole subject."""
    numbers = [f"{{{{partition({count},{tokens})}}}}" for count in COUNTS for tokens in ("2", "1,2", "2,1")]
    target = ".".join(["out", *numbers, "{{partition(8)}}", "{{wildcard(1)}}", "{{wildcard(2)}}"])

    async def add():
        async with aio.connect(server.url) as nc:
            transform = SubjectTransform(src="in.*.*", dest=target)
            options = {"name": "NUMBERED", "storage": "memory", "subjects": ["in.*.*"], "subject_transform": transform}
            await nc.jetstream().add_stream(**options)

    asyncio.run(add())
    return server


@pytest.mark.server
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=40, unique=True))
def test_number_equals_that_of_the_server(numbered, pairs):
    subjects = [f"in.{one}.{other}" for one, other in pairs]

    async def store():
        async with aio.connect(numbered.url) as nc:
            return await stored_subjects(nc.jetstream(), subjects)

    for (one, other), subject, stored in zip(pairs, subjects, asyncio.run(store())):
        own = [
            partition(tokens, count)
            for count in COUNTS
            for tokens in (other, [one, other], (token for token in (other, one)))
        ]
        assert stored == ".".join(["out", *map(str, own), str(partition(subject, 8)), one, other])


@pytest.mark.server
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1), min_size=1, max_size=20))
def test_number_of_a_template_equals_that_of_the_server(numbered, keys):
    """The server sees the encoded value as a token."""
    events = [plain_event(partitionkey=key, n=number) for number, key in enumerate(keys)]
    plain = SubjectTemplate("in.{n}.{partitionkey}")
    numbered_by_us = SubjectTemplate("{partition(1000,partitionkey)}.{partition(1000,n,partitionkey)}")

    async def store():
        async with aio.connect(numbered.url) as nc:
            return await stored_subjects(nc.jetstream(), [plain.format(event) for event in events])

    place = 1 + 3 * COUNTS.index(1000)
    for event, stored in zip(events, asyncio.run(store())):
        assert numbered_by_us.format(event).split(".") == stored.split(".")[place : place + 2]
