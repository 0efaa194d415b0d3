"""What sdk-go's JetStream protocol makes of headers, and why ce_nats writes them as it does."""

import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any

import nats

from ce_nats import ContentMode, to_nats_message
from ce_nats.testing import NatsServer
from tests.strategies import plain_event

from .exchange import run_receiver

Program = Callable[[str], Sequence[str]]
BINARY = to_nats_message(plain_event(id="binary"))
STRUCTURED = to_nats_message(plain_event({"total": 1}, id="structured"), mode=ContentMode.STRUCTURED)


async def test_headers_beside_a_structured_event(program: Program, server: NatsServer) -> None:
    """With ce- headers beside it, a structured event is the data of another one (cloudevents/sdk-go#1334)."""
    headers = dict(STRUCTURED.headers.items())
    assert await _read(program, server, headers, STRUCTURED.data) == ("structured", b'{"total":1}')
    both = {**headers, **dict(BINARY.headers.items())}
    assert await _read(program, server, both, STRUCTURED.data) == ("binary", STRUCTURED.data)


async def test_case_of_header_names(program: Program, server: NatsServer) -> None:
    """Names that are not in lower case are no attributes (cloudevents/sdk-go#1334)."""
    headers = dict(BINARY.headers.items())
    assert await _read(program, server, headers) == ("binary", b"")
    capitals = {name.title(): value for name, value in headers.items()}
    assert await _read(program, server, capitals) == ("unexpected end of JSON input", b"")


async def _read(program: Program, server: NatsServer, headers: dict[str, str], data: bytes = b"") -> tuple[Any, bytes]:
    """Id and data of the event that the peer makes of a message, or its error."""
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
