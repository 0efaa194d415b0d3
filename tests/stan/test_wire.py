"""
Messages of NATS Streaming: round trips, arbitrary bytes, and what Python makes possible besides.

The vectors of spec-fixtures/stan-messages.json run elsewhere.
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
def test_round_trip(message):
    """What is written is read as it was."""
    assert type(message).decode(message.encode()) == message


@given(messages(), messages())
def test_the_last_value_counts(one, other):
    """Two encodings, one behind the other, are the fields of the second over those of the first."""
    other = other if type(other) is type(one) else type(one)()
    given_fields = {field.name: getattr(other, field.name) for field in fields(other) if getattr(other, field.name)}
    assert type(one).decode(one.encode() + other.encode()) == replace(one, **given_fields)


@given(st.sampled_from(NAMES), st.binary(max_size=60))
@example("MsgProto", b"")
@example("MsgProto", b"\x0b" * 2000)
def test_any_bytes(name, data):
    """Arbitrary bytes are a message, or an error of this package; a message is then written again."""
    message, error = attempt(DecodeError, MESSAGES[name].decode, data)
    if error is not None:
        assert error.code in (ErrorCode.INVALID_PROTOBUF, ErrorCode.INVALID_UTF8)
    else:
        assert MESSAGES[name].decode(message.encode()) == message


@given(messages(), st.data())
def test_changed_bytes(message, data):
    """So are the bytes of a message, changed in places or cut."""
    octets = bytearray(message.encode())
    for _ in range(data.draw(st.integers(0, 3))):
        if octets:
            octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    octets = octets[: data.draw(st.integers(0, len(octets)))]
    _, error = attempt(DecodeError, type(message).decode, octets)
    assert error is None or error.requirement.startswith("ST-PB-")


@given(st.sampled_from(NAMES), st.data())
def test_any_values(name, data):
    """Values of any type are written and read as they were, or refused."""
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


@pytest.mark.parametrize(
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
def test_values_of_other_types(message, code):
    """The protobuf package would take bytes for text, and numbers for booleans."""
    error = refused(EncodeError, code, message.encode)
    assert error.requirement.startswith("ST-PB-")


@pytest.mark.parametrize("data", [None, "text", 5, [1, 2], object()])
def test_what_is_no_bytes(data):
    refused(DecodeError, "invalid-message", PubAck.decode, data)


@pytest.mark.parametrize("shape", [bytes, bytearray, memoryview])
def test_shapes_of_bytes(shape):
    assert MsgProto.decode(shape(WHOLE.encode())) == WHOLE


def test_a_view_that_was_released():
    view = memoryview(b"")
    view.release()
    refused(DecodeError, "invalid-message", PubAck.decode, view)


def test_every_cut_of_a_message():
    """Between its fields a message may end; anywhere else it is cut off."""
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


def test_messages_are_values():
    assert hash(PubAck("a")) == hash(PubAck("a"))
    with pytest.raises(FrozenInstanceError):
        PubAck("a").guid = "b"
    assert set(MESSAGES) == {name for name in stan.__all__ if name not in ("MESSAGES", "Message", "StartPosition")}


def test_start_positions():
    """They can be given by name, and come back as numbers."""
    request = SubscriptionRequest(start_position=StartPosition.FIRST)
    assert SubscriptionRequest.decode(request.encode()).start_position == StartPosition.FIRST == 4


def test_the_name_space_is_its_own():
    """Somebody else's generated code for the same protocol does not get in the way."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(name="protocol.proto", package="pb", syntax="proto3")
    file.message_type.add(name="PubMsg").field.add(name="other", number=1, type=5, label=1)
    descriptor_pool.Default().Add(file)
    assert PubMsg.decode(PubMsg("a").encode()) == PubMsg("a")


def test_more_fields_than_any_message_has():
    """A payload costs no more memory than its size, whatever it is made of."""
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


def test_numbers_without_end():
    """Neither does a length of a million digits."""
    for start in (b"", b"\x08", b"\x0a", b"\x78", b"\x7a"):
        refused(DecodeError, "invalid-protobuf", MsgProto.decode, start + b"\x80" * 2**20 + b"\x01")


class OwnAck(PubAck):
    """A message with a method more."""


class Other(stan.Message):
    """No message of the protocol."""


def test_messages_of_ones_own():
    """What is derived from a message is read and written as that; anything else is none."""
    assert OwnAck("a").encode() == PubAck("a").encode()
    assert type(OwnAck.decode(PubAck("a").encode())) is OwnAck
    for kind in (stan.Message, Other):
        refused(EncodeError, "invalid-message", kind().encode)
        refused(DecodeError, "invalid-message", kind.decode, b"")


WITHOUT = """
import json, sys
sys.modules["google.protobuf"] = None
from ce_nats.conformance import in_process, load_cases
print(json.dumps(sorted({(str(one.result), one.problem) for one in map(in_process, load_cases(["stan-messages"]))})))
try:
    import ce_nats.stan
except ImportError as error:
    print(error)
"""


def test_without_protobuf():
    """The conformance cases are skipped with the reason, and so is whoever wants the client."""
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
from ce_nats.conformance import in_process, load_cases
assert api_implementation.Type() == "python"
print(json.dumps([case.id for case in load_cases(["stan-messages"]) if str(in_process(case).result) != "passed"]))
"""


def test_protobuf_without_its_extension():
    """The vectors hold with the protobuf package's implementation in Python too."""
    env = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == []
