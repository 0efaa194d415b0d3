"""
Messages of NATS Streaming: round trips, arbitrary bytes, and arguments that only Python allows.

tests/test_fixtures.py runs the vectors of spec-fixtures/stan-messages.json.
"""

import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import FrozenInstanceError, fields, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ce_nats import DecodeError, EncodeError, ErrorCode
from ce_nats.stan import wire as stan
from ce_nats.stan.wire import MESSAGES, Ack, MsgProto, PubAck, PubMsg, StartPosition, SubscriptionRequest
from tests.support.strategies import attempt, refused
from tests.support.tables import each

VALUES = {
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "bytes": st.binary(),
    "bool": st.booleans(),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
}
NAMES = sorted(MESSAGES)
WHOLE = MsgProto(7, "orders", "reply", b"\0\xff", -1, True, 3, 9)


@st.composite
def messages(draw):
    kind = MESSAGES[draw(st.sampled_from(NAMES))]
    return kind(**{one.name: draw(VALUES[one.metadata["type"]]) for one in fields(kind)})


@given(messages())
def test_encoded_message_is_decoded_unchanged(message):
    assert type(message).decode(message.encode()) == message


@given(messages(), messages())
def test_last_value_of_a_duplicated_field_is_used(one, other):
    """In the concatenation of two messages, fields of the second replace those of the first."""
    other = other if type(other) is type(one) else type(one)()
    given_fields = {field.name: getattr(other, field.name) for field in fields(other) if getattr(other, field.name)}
    assert type(one).decode(one.encode() + other.encode()) == replace(one, **given_fields)


@given(st.sampled_from(NAMES), st.binary(max_size=60))
@example("MsgProto", b"")
@example("MsgProto", b"\x0b" * 2000)
def test_arbitrary_bytes_are_a_message_or_an_error(name, data):
    """An error of this package; a message can be encoded again."""
    message, error = attempt(DecodeError, MESSAGES[name].decode, data)
    if error is not None:
        assert error.code in (ErrorCode.INVALID_PROTOBUF, ErrorCode.INVALID_UTF8)
    else:
        assert MESSAGES[name].decode(message.encode()) == message


@given(messages(), st.data())
def test_changed_or_truncated_messages_are_a_message_or_an_error(message, data):
    octets = bytearray(message.encode())
    for _ in range(data.draw(st.integers(0, 3))):
        if octets:
            octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    octets = octets[: data.draw(st.integers(0, len(octets)))]
    _, error = attempt(DecodeError, type(message).decode, octets)
    assert error is None or error.requirement.startswith("ST-PB-")


@given(st.sampled_from(NAMES), st.data())
def test_values_of_any_type_are_encoded_unchanged_or_rejected(name, data):
    kind = MESSAGES[name]
    one = data.draw(st.sampled_from(fields(kind)))
    value = data.draw(
        st.one_of(*VALUES.values(), st.none(), st.floats(), st.text(), st.integers(), st.lists(st.integers()))
    )
    message = kind(**{one.name: value})
    octets, error = attempt(EncodeError, message.encode)
    if error is not None:
        assert f"{name}.{one.metadata['label']}" in error.message
    else:
        assert kind.decode(octets) == message


@each(
    ("message", "code"),
    [
        (Ack("a", True), "invalid-message"),
        (Ack("a", 1.0), "invalid-message"),
        (Ack("a", "1"), "invalid-message"),
        (Ack(b"a", 1), "invalid-message"),
        (Ack(None, 1), "invalid-message"),
        (PubMsg(data="text"), "invalid-message"),
        (PubMsg(data=bytearray(b"a")), "invalid-message"),
        (MsgProto(redelivered=1), "invalid-message"),
        (Ack("\ud800", 1), "invalid-utf8"),
        (Ack("a", 2**64), "integer-out-of-range"),
        (Ack("a", -1), "integer-out-of-range"),
        (Ack("a", 10**5000), "integer-out-of-range"),
    ],
)
def test_values_of_other_types_are_rejected(message, code):
    """The protobuf package would accept bytes as text, and numbers as booleans."""
    error = refused(EncodeError, code, message.encode)
    assert error.requirement.startswith("ST-PB-")


@each("data", [None, "text", 5, [1, 2], object()])
def test_data_that_is_not_bytes_is_rejected(data):
    refused(DecodeError, "invalid-message", PubAck.decode, data)


@each("shape", [bytes, bytearray, memoryview])
def test_bytes_like_objects_are_decoded(shape):
    assert MsgProto.decode(shape(WHOLE.encode())) == WHOLE


def test_released_memoryview_is_rejected():
    view = memoryview(b"")
    view.release()
    refused(DecodeError, "invalid-message", PubAck.decode, view)


def test_truncated_messages_are_rejected():
    """A message may end only between its fields."""
    octets = WHOLE.encode()
    whole = [0]
    for one in fields(WHOLE):
        part = replace(MsgProto(), **{one.name: getattr(WHOLE, one.name)}).encode()
        assert octets[whole[-1] :].startswith(part)
        whole.append(whole[-1] + len(part))
    for end in range(len(octets)):
        if end in whole:
            MsgProto.decode(octets[:end])
        else:
            refused(DecodeError, "invalid-protobuf", MsgProto.decode, octets[:end])


def test_messages_are_hashable_and_immutable():
    assert hash(PubAck("a")) == hash(PubAck("a"))
    with pytest.raises(FrozenInstanceError):
        PubAck("a").guid = "b"
    assert set(MESSAGES) == {name for name in stan.__all__ if name not in ("MESSAGES", "Message", "StartPosition")}


def test_start_positions_are_encoded_as_numbers():
    request = SubscriptionRequest(start_position=StartPosition.FIRST)
    assert SubscriptionRequest.decode(request.encode()).start_position == StartPosition.FIRST == 4


def test_generated_code_for_the_same_protocol_does_not_conflict():
    from google.protobuf import descriptor_pb2, descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(name="protocol.proto", package="pb", syntax="proto3")
    file.message_type.add(name="PubMsg").field.add(name="other", number=1, type=5, label=1)
    descriptor_pool.Default().Add(file)
    assert PubMsg.decode(PubMsg("a").encode()) == PubMsg("a")


def test_memory_for_many_fields_is_limited():
    """Whatever the fields are."""
    few = PubAck.decode(b"\x0a\x01a" + b"\x78\x01" * 999)
    assert few == PubAck("a")
    for record in (b"\x78\x01", b"\x7a\x00", b"\x79" + bytes(8), b"\x0a\x00"):
        payload = record * (2**20 // len(record))
        tracemalloc.start()
        try:
            error = refused(DecodeError, "invalid-protobuf", PubAck.decode, payload)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert "more than 1000 fields" in str(error)
        assert peak < len(payload) / 10


def test_numbers_of_a_million_digits_are_rejected():
    for start in (b"", b"\x08", b"\x0a", b"\x78", b"\x7a"):
        refused(DecodeError, "invalid-protobuf", MsgProto.decode, start + b"\x80" * 2**20 + b"\x01")


class OwnAck(PubAck):
    """A subclass of a message."""


class Other(stan.Message):
    """Not a message of the protocol."""


def test_subclasses_are_encoded_as_their_message():
    """Other classes are rejected."""
    assert OwnAck("a").encode() == PubAck("a").encode()
    assert type(OwnAck.decode(PubAck("a").encode())) is OwnAck
    for kind in (stan.Message, Other):
        refused(EncodeError, "invalid-message", kind().encode)
        refused(DecodeError, "invalid-message", kind.decode, b"")


WITHOUT = """
import json, sys
sys.modules["google.protobuf"] = None
from ce_nats.conformance import load_cases, run_case
verdicts = map(run_case, load_cases(["stan-messages"])[::20])  # each one tries to import protobuf again
print(json.dumps(sorted({(str(one.result), one.problem) for one in verdicts})))
try:
    import ce_nats.stan
except ImportError as error:
    print(error)
"""


def test_missing_protobuf_package_is_named():
    """Conformance cases are skipped with the same reason."""
    run = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    reason = "ce_nats.stan.wire needs protobuf: pip install 'ce-nats[stan]'"
    verdicts, error = run.stdout.splitlines()
    assert json.loads(verdicts) == [["skipped", reason]]
    assert error == reason


PROGRAM = """
import json, sys
from google.protobuf.internal import api_implementation
from ce_nats import CeNatsError
from ce_nats.conformance import load_cases, run_case
assert api_implementation.Type() == "python"
print(json.dumps([case.id for case in load_cases(["stan-messages"]) if str(run_case(case).result) != "passed"]))
"""


def test_vectors_pass_with_protobuf_in_python():
    env = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == []
