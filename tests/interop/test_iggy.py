"""Events to and from clients of Iggy: iggy-py 0.4 over TCP, apache-iggy 0.9 over TCP and HTTP."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ce_nats import ContentMode, from_nats_message, to_nats_message
from ce_nats.iggy import (
    HeaderKind,
    HeaderValue,
    IggyMessage,
    Layout,
    as_fields,
    as_message,
    encode_message,
    from_iggy_message,
    to_iggy_message,
)
from tests.support.strategies import Event

from .iggy_servers import HttpServer, OldServer, TcpServer, listening
from .samples import SAMPLES

# generous, because the machine may be busy
TIMEOUT = 60.0
TIMESTAMP = 1_692_700_000_000_001

# One header of each kind, with the limits of kinds that have some.
KINDS = {
    "raw": HeaderValue.of(HeaderKind.RAW, b"\0\xff" * 127),
    "string": HeaderValue.of(HeaderKind.STRING, "Zoë owes 5 € 😀"),
    "bool": HeaderValue.of(HeaderKind.BOOL, True),
    "no": HeaderValue.of(HeaderKind.BOOL, False),
    **{
        f"{kind.label} {end}": HeaderValue.of(kind, number)
        for kind in HeaderKind
        if "int" in kind.label
        for bits in [int(kind.label.rpartition("int")[2])]
        for end, number in (
            ("least", 0 if kind.label.startswith("u") else -(2 ** (bits - 1))),
            ("most", 2**bits - 1 if kind.label.startswith("u") else 2 ** (bits - 1) - 1),
        )
    },
    "float32": HeaderValue.of(HeaderKind.FLOAT32, 3.4028234663852886e38),
    "float64": HeaderValue.of(HeaderKind.FLOAT64, -5e-324),
    "k" * 255: HeaderValue.of(HeaderKind.STRING, "v" * 255),
}


def message_of(sample: Event) -> IggyMessage:
    """Return the message of a sample in binary mode, or in structured mode if it has no data."""
    has_data = sample.data is not None
    return to_iggy_message(sample, mode=ContentMode.BINARY if has_data else ContentMode.STRUCTURED)


EVENTS = [message_of(sample) for sample in SAMPLES.values()]
MESSAGES = [
    replace(message, id=number + 1, offset=number, timestamp=TIMESTAMP)
    for number, message in enumerate([*EVENTS, IggyMessage(b"\0", KINDS), IggyMessage(b"plain")])
]


async def run(command: Sequence[str], *arguments: str, lines: Sequence[str] = ()) -> list[Any]:
    process = await asyncio.create_subprocess_exec(*command, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    given = "".join(f"{line}\n" for line in lines).encode()
    output, errors = await asyncio.wait_for(process.communicate(given), TIMEOUT)
    assert process.returncode == 0, errors.decode()
    return [json.loads(line) for line in output.splitlines()]


# --- Iggy 0.4 over TCP ----------------------------------------------------------------------------------------------


async def test_old_client_reads_messages_with_headers(program: Callable[[str], Sequence[str]]) -> None:
    """It finds each payload after headers of every kind, and all numbers."""
    server = OldServer([encode_message(message, polled=True) for message in MESSAGES])
    async with listening(server.answer) as address:
        polled = await run(program("iggy-py"), "poll", address)
    assert polled == [
        {"payload": b64encode(one.payload).decode(), "id": one.id, "offset": one.offset, "timestamp": one.timestamp}
        for one in MESSAGES
    ]


async def test_old_client_parses_headers(program: Callable[[str], Sequence[str]]) -> None:
    """So the test above is meaningful: it rejects an unknown kind."""
    frame = encode_message(replace(MESSAGES[0], headers={"key": KINDS["bool"]}), polled=True)
    server = OldServer([frame.replace(b"key\x03", b"key\x10")])
    async with listening(server.answer) as address:
        assert await run(program("iggy-py"), "poll", address) == [{"error": "InvalidCommand"}]


async def test_old_client_sends_events(program: Callable[[str], Sequence[str]]) -> None:
    """It can only send text, so events are structured; each arrives unchanged."""
    messages = [to_nats_message(sample, mode=ContentMode.STRUCTURED) for sample in SAMPLES.values()]
    server = OldServer()
    async with listening(server.answer) as address:
        lines = [message.data.decode() for message in messages]
        assert await run(program("iggy-py"), "send", address, lines=lines) == []
    assert [(message.headers, message.id) for message in server.sent] == [({}, 0)] * len(SAMPLES)
    received = [from_iggy_message(message, mode=ContentMode.STRUCTURED) for message in server.sent]
    assert received == [from_nats_message(message) for message in messages]


# --- Iggy 0.9 over TCP and HTTP -------------------------------------------------------------------------------------


# Keys have every kind, too.
TYPED = replace(MESSAGES[-1], headers={value: value for value in KINDS.values() if value.kind is not HeaderKind.STRING})


@pytest.fixture(params=[(TcpServer, ""), (HttpServer, "http://")], ids=["tcp", "http"])
def transport(request: pytest.FixtureRequest) -> tuple[type[TcpServer | HttpServer], str]:
    """The class of a server, and the prefix of its address."""
    return request.param


async def test_client_reads_typed_headers(transport: Any, program: Callable[[str], Sequence[str]]) -> None:
    """Each header has the encoded type and value."""
    make_server, scheme = transport
    stored = [*MESSAGES, replace(TYPED, offset=len(MESSAGES))]
    server = make_server(stored)
    async with listening(server.answer) as address:
        polled = await run(program("apache-iggy"), "poll", scheme + address)
    assert [as_message(one, layout=Layout.TYPED_KEYS) for one in polled] == stored


async def test_client_sends_typed_headers(transport: Any, program: Callable[[str], Sequence[str]]) -> None:
    """Messages arrive with all headers that the client encoded, and events arrive unchanged."""
    make_server, scheme = transport
    messages = [replace(message, offset=None, timestamp=None) for message in [*MESSAGES, TYPED]]
    lines = [json.dumps(as_fields(one, layout=Layout.TYPED_KEYS)) for one in messages]
    server = make_server()
    async with listening(server.answer) as address:
        await run(program("apache-iggy"), "send", scheme + address, lines=lines)
    assert server.sent == messages
    received = [from_iggy_message(message) for message in server.sent[: len(SAMPLES)]]
    assert received == [from_iggy_message(message) for message in EVENTS]
