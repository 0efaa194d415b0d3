"""How sdk-go decodes headers and event formats: the reasons for the way ce_nats encodes them."""

import asyncio
import json
from asyncio.subprocess import PIPE
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any

import nats
import pytest
from google.protobuf.struct_pb2 import Struct

from ce_nats import ContentMode, DecodeError, NatsMessage, aio, from_nats_message, to_nats_message
from ce_nats.testing import NatsServer
from tests.support.strategies import Event, plain_event, refused

from .exchange import run_receiver
from .samples import request_line

Program = Callable[[str], Sequence[str]]
BINARY = to_nats_message(plain_event(id="binary"))
STRUCTURED = to_nats_message(plain_event({"total": 1}, id="structured"), mode=ContentMode.STRUCTURED)


async def test_headers_beside_a_structured_event(program: Program, server: NatsServer) -> None:
    """With additional ce- headers, a structured event becomes the data of another one (cloudevents/sdk-go#1334)."""
    headers = dict(STRUCTURED.headers.items())
    assert await _read(program, server, headers, STRUCTURED.data) == ("structured", b'{"total":1}')
    both = {**headers, **dict(BINARY.headers.items())}
    assert await _read(program, server, both, STRUCTURED.data) == ("binary", STRUCTURED.data)


async def test_case_of_header_names(program: Program, server: NatsServer) -> None:
    """Header names that are not in lower case are ignored (cloudevents/sdk-go#1334)."""
    headers = dict(BINARY.headers.items())
    assert await _read(program, server, headers) == ("binary", b"")
    capitals = {name.title(): value for name, value in headers.items()}
    assert await _read(program, server, capitals) == ("unexpected end of JSON input", b"")


async def _read(program: Program, server: NatsServer, headers: dict[str, str], data: bytes = b"") -> tuple[Any, bytes]:
    """Return id and data of the event that the peer decodes, or its error."""
    command = program("go")
    connection = await nats.connect(server.url)
    js = connection.jetstream()
    await js.add_stream(name="headers", subjects=["headers"], storage="memory")
    try:
        await js.publish("headers", data, headers=headers)
        [line] = await run_receiver([*command, "receive", "jetstream", "1", server.url, "headers", "headers"])
    finally:
        await js.delete_stream("headers")
        await connection.close()
    answer = json.loads(line)
    return answer.get("error") or answer["attributes"]["id"], b64decode(answer["data"] or "")


# --- The Protobuf format --------------------------------------------------------------------------------------------

MESSAGE = Struct()
MESSAGE.update({"id": "7"})
MESSAGE_TYPES = {"datacontenttype": "application/protobuf", "dataschema": "https://e/google.protobuf.Struct"}
TYPE = "application/cloudevents+protobuf"


async def test_protobuf_messages_from_the_peer(program: Program, server: NatsServer) -> None:
    """sdk-go encodes data of type application/protobuf as an Any with dataschema as its type."""
    sample = plain_event(MESSAGE.SerializeToString(), **MESSAGE_TYPES)
    message = await _sent(program, server, sample, "protobuf", "structured")
    event = from_nats_message(message)
    assert event.get_attributes() == sample.attributes
    assert event.get_data().type_url == MESSAGE_TYPES["dataschema"]
    assert event.get_data().unpack(Struct) == MESSAGE


async def test_protobuf_messages_to_the_peer(program: Program, server: NatsServer) -> None:
    """sdk-go decodes the bytes of the message, and the type URL as dataschema."""
    answer = await _received(program, server, plain_event(MESSAGE))
    assert answer["attributes"] == {
        **plain_event().attributes,
        "datacontenttype": "application/protobuf",
        "dataschema": "https://type.googleapis.com/google.protobuf.Struct",
    }
    assert b64decode(answer["data"]) == MESSAGE.SerializeToString()


@pytest.mark.parametrize(
    ("value", "content_type", "wanted"),
    [
        ({"a": "é"}, "application/json", '{"a":"é"}'.encode()),
        ("é", "text/plain", "é".encode()),
        (b"<a/>", "application/xml", b"<a/>"),
        ("<a/>", "application/xml", b"<string>&lt;a/&gt;</string>"),
        (b"a,b", "text/csv", b"a,b"),
    ],
)
async def test_text_to_the_peer(
    program: Program, server: NatsServer, value: Any, content_type: str, wanted: bytes
) -> None:
    """binary_data arrives unchanged; sdk-go encodes text_data again, as XML here."""
    answer = await _received(program, server, plain_event(value, datacontenttype=content_type))
    assert b64decode(answer["data"]) == wanted


async def test_text_that_the_peer_cannot_decode(program: Program, server: NatsServer) -> None:
    """sdk-go rejects text_data of a type without an encoder."""
    with pytest.raises(AssertionError, match=r"failed to convert text type \(text/csv\) data"):
        await _received(program, server, plain_event("a,b", datacontenttype="text/csv"))


@pytest.mark.parametrize("protocol", ["nats", "jetstream"])
async def test_protocols_do_not_send_the_format(program: Program, server: NatsServer, protocol: str) -> None:
    """Messages of sdk-go's NATS protocols in this format have no Content-Type; with one they are decoded."""
    sample = plain_event(b"x", datacontenttype="image/png")
    message = await _sent(program, server, sample, protocol, "protobuf")
    assert not message.headers
    refused(DecodeError, "not-a-cloudevent", from_nats_message, message)
    marked = NatsMessage(message.subject, message.data, {"Content-Type": TYPE})
    assert from_nats_message(marked).get_attributes() == sample.attributes


async def _sent(program: Program, server: NatsServer, sample: Event, protocol: str, mode: str) -> Any:
    """Return the message of an event that the peer sends."""
    command = [*program("go"), "send", protocol, mode, server.url, "formats", "formats"]
    connection = await nats.connect(server.url)
    js = connection.jetstream()
    await js.add_stream(name="formats", subjects=["formats"], storage="memory")
    try:
        subscription = await connection.subscribe("formats")
        await aio.flush(connection)
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stderr=PIPE)
        _, errors = await process.communicate(request_line(sample))
        assert process.returncode == 0, errors.decode()
        return await subscription.next_msg(timeout=60)
    finally:
        await js.delete_stream("formats")
        await connection.close()


async def _received(program: Program, server: NatsServer, event: Event) -> Any:
    """Return the event that the peer decodes from the Protobuf format; raise AssertionError with its error."""
    command = [*program("go"), "receive", "protobuf", "1", server.url, "", "formats.to"]
    connection = await nats.connect(server.url)

    async def publish() -> None:
        await aio.publish(connection, event, "formats.to", mode="structured", format="protobuf")
        await aio.flush(connection)

    try:
        [line] = await run_receiver(command, publish)
    finally:
        await connection.close()
    return json.loads(line)
