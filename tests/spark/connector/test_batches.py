"""Raw messages as rows of Arrow record batches."""

import tracemalloc
from inspect import signature
from random import Random

import pyarrow as pa
import pytest

from ce_nats import DecodedEvent, NatsMessage, cesql, from_nats_message, to_nats_message
from ce_nats.aio.reading._range_reader import RawBatch
from ce_nats.aio.reading._stored_messages import _Lines, _pairs
from ce_nats.capture._rows import SCHEMA
from ce_nats.cesql._messages import MessageFilter
from ce_nats.codec import percent
from ce_nats.errors import DecodeError
from ce_nats.spark.connector._batches import passing, record_batch
from ce_nats.spark.connector._source import NatsDataSource
from ce_nats.wire.nats import encode_header_block
from tests.support.expressions import random_event
from tests.support.tables import each


def rows(*blocks, reply=b"$JS.ACK.S.c.1.%d.1.1700000000123456789.0", subject=b"s"):
    messages = [(subject, reply % number, b"data", block) for number, block in enumerate(blocks, 1)]
    batch = record_batch(RawBatch("S", messages, 1, len(blocks)))
    batch.validate(full=True)
    return batch.to_pylist()


def headers(block):
    (row,) = rows(block)
    return [(header["key"], header["value"]) for header in row["headers"]]


def test_the_arrow_schema_equals_that_of_spark():
    """Spark compares them, and rejects any difference."""
    from pyspark.sql.pandas.types import to_arrow_schema

    utc = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}  # else it is UTC
    schema = NatsDataSource({"url": "nats://127.0.0.1:4222"}).schema()
    assert to_arrow_schema(schema, **utc).equals(SCHEMA, check_metadata=True)


@each(
    ("block", "expected"),
    [
        (None, []),
        (b"", []),
        (b"NATS/1.0\r\n\r\n", []),
        (b"NATS/1.0\r\nb: 1\r\na: 2\r\nB: 3\r\nb: 1\r\n\r\n", [("b", "1"), ("a", "2"), ("B", "3"), ("b", "1")]),
        (b"NATS/1.0\r\na:1\r\nb:\t 2 \t\r\nc: \r\nd:\r\n\r\n", [("a", "1"), ("b", "2"), ("c", ""), ("d", "")]),
        (b"NATS/1.0\r\nurl: http://a:1/?b:c\r\n\r\n", [("url", "http://a:1/?b:c")]),
        (b"NATS/1.0\r\nno colon\r\n: no name\r\n\r\nafter: it\r\nname : x\r\n\r\n",
         [("", "no name"), ("after", "it"), ("name ", "x")]),
        (b"NATS/1.0 100 a: b\r\nc: d\r\n\r\n", [("c", "d")]),
        (b"NATS/1.0 503\r\n\r\n", []),
        (b"garbage: 1\r\nc: d", [("c", "d")]),
        (b"garbage: 1", []),
        (b"NATS/1.0\r\na: \x0b1\xc2\xa0\r\n\r\n", [("a", "\x0b1\xa0")]),
        (b"NATS/1.0\r\na: 1\nb: 2\r\n\r\n", [("a", "1\nb: 2")]),
        ("NATS/1.0\r\nTag: Größe € 😀\r\n\r\n".encode(), [("Tag", "Größe € 😀")]),
        (b"NATS/1.0\r\na: x\xff\xc0\xa0y\r\n\xfe: \xed\xa0\x80\r\nc: \xc3\xa9\r\n\r\n",
         [("a", "x%FF%C0%A0y"), ("%FE", "%ED%A0%80"), ("c", "é")]),
    ],
)  # fmt: skip
def test_header_lines(block, expected):
    assert headers(block) == expected


def test_malformed_bytes_of_one_message_do_not_change_others():
    good = b"NATS/1.0\r\na: %41 \xc3\xa9\r\n\r\n"
    found = rows(good, b"NATS/1.0\r\na: \xff\r\n\r\n", None, good)
    assert [[header["value"] for header in row["headers"]] for row in found] == [["%41 é"], ["%FF"], [], ["%41 é"]]


@each("value", [b"\xff", b"a\xc0\xa0b", b"\xed\xa0\x80", b"ok\xe2\x82"])
def test_malformed_values_stay_malformed(value):
    ((_, text),) = headers(b"NATS/1.0\r\nce-id: " + value + b"\r\n\r\n")
    with pytest.raises(DecodeError) as info:
        percent.decode(text)
    assert info.value.code == "invalid-utf8"


@each("seed", range(10))
def test_random_blocks_have_the_same_headers_as_in_captures(seed):
    """Arrow's functions and the Python code return equal headers for random bytes similar to a header block."""
    random = Random(seed)
    partitions = [
        b"NATS/1.0",
        b"\r\n",
        b": ",
        b":",
        b"a",
        b"ce-id",
        b" ",
        b"\t",
        b"\r",
        b"\n",
        b"\xff",
        b"\xc3\xa9",
        b"\xc3",
        b"%",
    ]
    blocks = [b"".join(random.choices(partitions, k=random.randrange(20))) for _ in range(200)]
    blocks += [b"NATS/1.0\r\n" + block for block in blocks]
    escape = str.maketrans({0xDC00 + byte: f"%{byte:02X}" for byte in range(128, 256)})
    expected = [
        [(name.translate(escape), value.translate(escape)) for name, value in _pairs(block, _Lines())]
        for block in blocks
    ]
    found = [[(header["key"], header["value"]) for header in row["headers"]] for row in rows(*blocks)]
    assert found == expected


@pytest.mark.parametrize("seed", range(3))
def test_a_filter_keeps_what_the_events_in_rows_decide(seed):
    """Random events in both modes, some of them damaged, are kept unless they are decoded and do not pass."""
    random = Random(seed)
    messages = []
    for number in range(1, 2001):
        message = to_nats_message(DecodedEvent(random_event(random)), "s", mode=random.choice(["binary", "structured"]))
        block, payload = encode_header_block(message.headers.items()), message.data
        if random.random() < 0.3:
            at = random.randrange(len(block))
            block = block[:at] + random.choice([b"", b"%", b"\xff", b"\r\n", b":", b" ", b"ce-id: 9\r\n"]) + block[at:]
        if random.random() < 0.1:
            payload = payload[:-1]
        messages.append((b"s", b"$JS.ACK.S.c.1.%d.1.1700000000123456789.0" % number, payload, block))
    batch = RawBatch("S", messages, 1, len(messages))
    everything = record_batch(batch).to_pylist()
    for text in ("tier = 'gold' OR hops > 0", "EXISTS subject", "LENGTH(id) < 3 AND NOT urgent", "TRUE", "missing"):
        expression = cesql.compile(text)
        found = passing(batch, MessageFilter(expression, "test"))
        kept = [] if found is None else record_batch(found).to_pylist()
        assert kept == [row for row in everything if is_kept(row, expression)]
        assert 0 < len(kept) < len(everything) or text == "TRUE"


def is_kept(row, expression):
    headers = [(header["key"], header["value"]) for header in row["headers"]]
    try:
        event = from_nats_message(NatsMessage("s", row["data"], headers), parse_data=False)
    except DecodeError:
        return True
    return expression.matches(event)


def test_row_has_all_columns():
    """A stream does not store the reply subject."""
    (row,) = rows(b"NATS/1.0\r\na: b\r\n\r\n", subject=b"orders.new")
    assert row.pop("timestamp").isoformat() == "2023-11-14T22:13:20.123456+00:00"
    assert row.pop("headers") == [{"key": "a", "value": "b"}]
    assert row == {"subject": "orders.new", "reply": "", "data": b"data", "stream": "S", "sequence": 1}


def test_malformed_subjects_are_escaped():
    (row,) = rows(None, subject=b"orders.\xff.\xc3\xa9")
    assert row["subject"] == "orders.%FF.é"


@each(
    "reply",
    [
        b"$JS.ACK.S.c.1.%d.9.1700000000123456789.0",
        b"$JS.ACK._.hash.S.c.1.%d.9.1700000000123456789.0.random",
        b"$JS.ACK.hub.hash.S.c.1.%d.9.1700000000123456789.0",
    ],
)
def test_sequence_and_time_come_from_the_reply_subject(reply):
    found = rows(None, None, reply=reply)
    assert [row["sequence"] for row in found] == [1, 2]
    assert {row["timestamp"].isoformat() for row in found} == {"2023-11-14T22:13:20.123456+00:00"}


def test_large_sequences_fit():
    messages = [(b"s", b"$JS.ACK.S.c.1.%d.1.1700000000123456789.0" % (2**63 - 1), b"", None)]
    assert record_batch(RawBatch("S", messages, 1, 1)).column("sequence").to_pylist() == [2**63 - 1]


def test_payloads_are_copied_once():
    payload = bytes(1_000_000)
    messages = [(b"s", b"$JS.ACK.S.c.1.%d.1.1700000000123456789.0" % number, payload, None) for number in range(20)]
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    batch = record_batch(RawBatch("S", messages, 1, 20))
    (_, peak) = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 45_000_000
    assert peak < 1_000_000
    assert batch.num_rows == 20
