"""
The Dataref extension: references to objects, and their names.
"""

import tracemalloc
from hashlib import sha256
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ce_nats import DecodeError, EncodeError, from_nats_message, to_nats_message
from ce_nats.extensions.dataref import ObjectReference, object_name, object_reference
from tests.support.strategies import legal_text, plain_event, refused
from tests.support.tables import each

BUCKETS = st.from_regex("[A-Za-z0-9_-]{1,20}", fullmatch=True)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


@given(BUCKETS, NAMES)
def test_reference_round_trips_through_a_message(bucket: str, name: str) -> None:
    reference = ObjectReference(bucket, name)
    event = plain_event(dataref=str(reference))
    assert object_reference(event) == reference
    assert object_reference(from_nats_message(to_nats_message(event, "s"))) == reference
    assert str(reference).isascii()


@given(st.text())
def test_any_text_is_a_reference_or_unsupported(text: str) -> None:
    for value in (text, f"nats-obj:b/{text}"):
        try:
            ObjectReference.parse(value)
        except DecodeError as error:
            assert error.code == "unsupported-dataref"  # noqa: PT017


def test_form_of_a_reference() -> None:
    assert str(ObjectReference("DATA", "a/b ü%.")) == "nats-obj:DATA/a%2Fb%20%C3%BC%25."
    assert ObjectReference.parse("NATS-OBJ:DATA/a/b:c") == ObjectReference("DATA", "a/b:c")


@each(
    "value",
    [
        *("", "https://example.com/data", "http://169.254.169.254/latest", "file:///etc/passwd", "DATA/name"),
        "/DATA/name",
        *("nats-obj:", "nats-obj:DATA", "nats-obj:DATA/", "nats-obj:/DATA/name", "nats-obj://DATA/name"),
        *("nats-obj:DA.TA/name", "nats-obj:DA*/name", "nats-obj:>/name", "nats-obj:D%41/name", "nats-obj:DATA\n/name"),
        *("nats-obj:DATA/a b", "nats-obj:DATA/%", "nats-obj:DATA/%4", "nats-obj:DATA/%FF", "nats-obj:DATA/a?q"),
        "nats-obj:DATA/ü",
        *(
            "nats-obj:DATA/a#f",
            "nats-obj:DATA/a\n",
            f"nats-obj:DATA/{1001 * 'a'}",
            f"nats-obj:{201 * 'D'}/a",
            5,
            b"nats-obj:D/a",
        ),
    ],
)
def test_other_values_are_unsupported(value: Any) -> None:
    error = refused(DecodeError, "unsupported-dataref", object_reference, plain_event(dataref=value))
    assert error.attribute == "dataref"


def test_error_of_an_invalid_name_has_its_cause() -> None:
    error = refused(DecodeError, "unsupported-dataref", ObjectReference.parse, "nats-obj:DATA/%FF")
    assert isinstance(error.__cause__, UnicodeDecodeError)


@each("arguments", [("", "a"), ("a.b", "c"), ("a b", "c"), ("a", ""), ("a", 501 * "ü"), ("a", "b\ud800")])
def test_names_of_a_reference_are_checked(arguments: tuple[str, str]) -> None:
    refused(EncodeError, "invalid-subject", ObjectReference, *arguments)


def test_event_without_dataref_has_no_reference() -> None:
    assert object_reference(plain_event()) is None
    refused(EncodeError, "invalid-message", object_reference, None)


@given(legal_text(1), legal_text(1), st.binary(max_size=20))
def test_name_of_an_object_has_the_digest_of_its_data(source: str, identifier: str, payload: bytes) -> None:
    name = object_name(plain_event(source=f"/{source}".replace(" ", ""), id=identifier), payload)
    assert ObjectReference("b", name).sha256 == sha256(payload).digest()
    assert ObjectReference.parse(str(ObjectReference("b", name))).name == name


@given(st.lists(st.tuples(legal_text(1), legal_text(1), st.binary(max_size=2)), min_size=2, max_size=2, unique=True))
def test_different_events_have_different_objects(events: list[tuple[str, str, bytes]]) -> None:
    first, second = (object_name(plain_event(source=source, id=name), data) for source, name, data in events)
    assert first != second


@each("name", ["report.pdf", f"{32 * 'a'}-{63 * 'b'}", f"{32 * 'A'}-{64 * 'b'}"])
def test_other_names_have_no_digest(name: str) -> None:
    assert ObjectReference("b", name).sha256 is None


@each("attributes", [{"id": ...}, {"source": ...}])
def test_event_of_an_object_needs_source_and_id(attributes: dict[str, Any]) -> None:
    refused(EncodeError, "missing-attribute", object_name, plain_event(**attributes), b"")


@each(("part", "byte"), [("a", "a"), ("%41", "A")])
def test_names_have_at_most_1000_bytes(part: str, byte: str) -> None:
    """A longer name is rejected before it is decoded, which would need a hundred times the memory of the text."""
    assert ObjectReference.parse("nats-obj:b/" + part * 1000).name == byte * 1000
    refused(DecodeError, "unsupported-dataref", ObjectReference.parse, "nats-obj:b/" + part * 1001)
    text = "nats-obj:b/" + part * 300_000
    tracemalloc.start()
    try:
        refused(DecodeError, "unsupported-dataref", ObjectReference.parse, text)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(text)
    finally:
        tracemalloc.stop()
