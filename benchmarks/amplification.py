"""
Measure memory and CPU time of the decoders relative to the size of hostile input.

Each kind of input is decoded at two sizes, the second eight times the first. The table has the peak of the memory that
Python allocates per byte of input, microseconds of CPU time per KB, and the exponent of the time between both sizes: 1
is linear, 2 quadratic. An error is an outcome like any other. Memory that Arrow and Protobuf allocate themselves is not
traced. The input exists before the measurement and does not count as memory.

``python -m benchmarks.amplification [--size BYTES] [--no-gc] [--markdown]``
"""

from __future__ import annotations

import argparse
import gc
import math
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from time import process_time
from typing import Any, Final

from ce_nats import CeNatsError, NatsMessage, from_nats_message
from ce_nats.capture import from_json_line
from ce_nats.codec import percent
from ce_nats.codec.media_type import parse
from ce_nats.codec.subject_template import SubjectTemplate
from ce_nats.codec.timestamp import Timestamp
from ce_nats.extensions.dataref import ObjectReference
from ce_nats.iggy import decode_headers, decode_json
from ce_nats.stan.wire import PubAck
from ce_nats.wire.nats import decode_frames, decode_header_block

from . import table

_FACTOR: Final = 8
_ROUNDS: Final = 3
_REQUIRED: Final = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
_START: Final = b'{"specversion":"1.0","id":"1","source":"/s","type":"t",'


def _headers(size: int, line: str) -> dict[str, str]:
    count = size // len(line % 0)
    return {**_REQUIRED, **dict((line % number).split(":") for number in range(count))}


def _binary(headers: dict[str, str]) -> NatsMessage:
    return NatsMessage("s", b"", headers)


def _structured(members: bytes, kind: str = "json") -> NatsMessage:
    payload = members if kind != "json" else _START + members + b"}"
    return NatsMessage("s", payload, {"Content-Type": f"application/cloudevents+{kind}"})


def _members(size: int) -> bytes:
    return b",".join(b'"x%d":1' % number for number in range(size // 10))


def _protobuf(size: int) -> bytes:
    """An event with as many attributes as fit, each ``{"xN": true}``."""
    entries = []
    for number in range(size // 16):
        name = b"x%d" % number
        entry = b"\x0a" + bytes([len(name)]) + name + b"\x12\x02\x08\x01"
        entries.append(b"\x2a" + bytes([len(entry)]) + entry)
    return b"\x0a\x011\x12\x02/s\x1a\x031.0\x22\x01t" + b"".join(entries)


def _iggy_headers(size: int) -> bytes:
    """Entries of 17 bytes with different keys: one that occurs twice would end decoding."""
    keys = (b"%07d" % number for number in range(size // 17))
    return b"".join(b"\x07\x00\x00\x00" + key + b"\x02\x01\x00\x00\x00a" for key in keys)


def _charset(text: str) -> object:
    found = parse(text)
    return found and found.codec()


_TEMPLATE: Final = SubjectTemplate("a.{type:tokens}")

# Input of about a size, and the decoder.
INPUTS: Final[dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]]] = {
    "many `ce-` headers": (lambda n: _binary(_headers(n, "ce-x%d:1")), from_nats_message),
    "many other headers": (lambda n: _binary(_headers(n, "x-%d:1")), from_nats_message),
    "percent-encoding": (lambda n: "%41" * (n // 3), percent.decode),
    "quoted pairs": (lambda n: '"' + "\\x" * (n // 2) + '"', percent.decode),
    "media type parameters": (lambda n: "a/b" + ';a="' * (n // 4), parse),
    "charset name": (lambda n: "a/b;charset=" + "x" * n, _charset),
    "digits of a time": (lambda n: f"2020-01-01T00:00:00.{'1' * n}Z", Timestamp),
    "JSON, many members": (lambda n: _structured(_members(n)), from_nats_message),
    "JSON, empty arrays": (lambda n: _structured(b'"data":[' + b"[]," * (n // 3) + b"1]"), from_nats_message),
    "JSON, one-digit numbers": (lambda n: _structured(b'"data":[' + b"1," * (n // 2) + b"1]"), from_nats_message),
    "JSON, nested arrays": (lambda n: _structured(b'"data":' + b"[" * n), from_nats_message),
    "JSON, escapes": (lambda n: _structured(b'"data":"' + b"\\u0041" * (n // 6) + b'"'), from_nats_message),
    "JSON, base64": (lambda n: _structured(b'"data_base64":"' + b"AAAA" * (n // 4) + b'"'), from_nats_message),
    "Protobuf, many attributes": (lambda n: _structured(_protobuf(n), "protobuf"), from_nats_message),
    "header block, many lines": (lambda n: b"NATS/1.0\r\n" + b"a:\r\n" * (n // 4) + b"\r\n", decode_header_block),
    "frames without payload": (lambda n: b"MSG a 1 0\r\n\r\n" * (n // 13), decode_frames),
    "subject of a template": (lambda n: "a" + ".%2E" * (n // 4), _TEMPLATE.parse),
    "line of a capture": (
        lambda n: b'{"headers":[' + b'["a",""],' * (n // 9) + b'["a",""]],"timestamp":"x"}',
        from_json_line,
    ),
    "`dataref`": (lambda n: "nats-obj:b/" + "%41" * (n // 3), ObjectReference.parse),
    "Iggy headers": (_iggy_headers, decode_headers),
    "Iggy JSON": (lambda n: b'{"headers":{' + b'"a":[],' * (n // 7) + b'"a":1}}', decode_json),
    "NATS Streaming, many fields": (lambda n: b"\x78\x01" * (n // 2), PubAck.decode),
}


def _size(value: Any) -> int:
    if isinstance(value, NatsMessage):
        return len(value.data) + sum(len(name) + len(text) + 4 for name, text in value.headers.items())
    return len(value)


def _run(decode: Callable[[Any], Any], value: Any) -> None:
    with suppress(CeNatsError):
        decode(value)


def _peak(decode: Callable[[Any], Any], value: Any) -> int:
    tracemalloc.start()
    try:
        _run(decode, value)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _seconds(decode: Callable[[Any], Any], value: Any) -> float:
    """Return the shortest time of several calls: noise only makes a call longer."""
    times = []
    for _ in range(_ROUNDS):
        calls, start = 0, process_time()
        while (took := process_time() - start) < 0.02:
            _run(decode, value)
            calls += 1
        times.append(took / calls)
    return min(times)


def measure(name: str, size: int) -> list[str]:
    """Return the cells of a kind of input."""
    make, decode = INPUTS[name]
    small, large = make(size), make(_FACTOR * size)
    _run(decode, make(100))  # loads modules
    memory = [_peak(decode, value) / _size(value) for value in (small, large)]
    seconds = [_seconds(decode, value) for value in (small, large)]
    exponent = math.log(seconds[1] / seconds[0]) / math.log(_size(large) / _size(small))
    micros = [took * 1e9 / _size(value) for took, value in zip(seconds, (small, large))]
    return [name, *(f"{times:.1f}" for times in memory), *(f"{time:.2f}" for time in micros), f"{exponent:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--size", type=int, default=2**16, help="bytes of the smaller input")
    parser.add_argument("--no-gc", action="store_true", help="measure without the garbage collector")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    if arguments.no_gc:
        gc.disable()
    sizes = [f"{size / 1024:g} KiB" for size in (arguments.size, _FACTOR * arguments.size)]
    titles = ["input", *(f"memory, {size}" for size in sizes), *(f"µs/KB, {size}" for size in sizes), "exponent"]
    rows = (measure(name, arguments.size) for name in INPUTS)
    table.show(titles, rows, "memory in bytes per byte of input", markdown=arguments.markdown)


if __name__ == "__main__":
    main()
