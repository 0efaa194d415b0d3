"""Counts of ``top``, and reports as text and as JSON."""

import json
import re
import time

from ce_nats import NatsMessage, to_nats_message
from ce_nats.aio._jetstream_api import Lag
from ce_nats.aio.consumer._outage import Pause
from ce_nats.aio.core._subscribe import receive
from ce_nats.cli._input import read_event
from ce_nats.cli._terminal import console
from ce_nats.cli._top_report import Consumer, Count, Report, Traffic, report_fields, report_table
from ce_nats.codec.binding import from_nats_message


def received(type_="t", source="/s", *, data="x", mode="binary"):
    event = {"specversion": "1.0", "id": "1", "source": source, "type": type_, "datacontenttype": "text/plain"}
    message = to_nats_message(read_event(json.dumps({**event, "data": data}).encode()), "a", mode=mode)
    return receive(message, from_nats_message)


def not_an_event(data=b"no"):
    return receive(NatsMessage("a", data), from_nats_message)


def report(traffic, *, consumer=None, seconds=2.0):
    return Report("a.>", seconds, 10.0, traffic, consumer)


def drawn(given, limit=20, width=200):
    paper = console()
    paper.width = width
    with paper.capture() as captured:
        paper.print(report_table(given, limit))
    return captured.get()


# --- Counting ---------------------------------------------------------------------------------------------------------


def test_messages_are_counted_by_type_source_mode_and_error():
    traffic = Traffic()
    for _ in range(3):
        traffic.add(received("paid", "/shop", data="€"))
    traffic.add(received("paid", "/other", data="four", mode="structured"))
    traffic.add(not_an_event(b"12345"))
    structured = traffic.modes["structured"].data_bytes
    assert traffic.pairs[("paid", "/shop")] == Count(3, 9, 3, 9)
    assert traffic.pairs[("paid", "/other")] == traffic.modes["structured"] == Count(1, structured, 1, structured)
    assert structured > 50  # the payload of a structured message is the whole event
    assert traffic.modes["binary"] == Count(3, 9, 3, 9)
    assert dict(traffic.errors) == {"not-a-cloudevent": Count(1, 5, 1, 5)}
    assert traffic.total == Count(5, 14 + structured, 5, 14 + structured)
    traffic.begin_interval()
    traffic.add(not_an_event(b"1"))
    assert traffic.pairs[("paid", "/shop")] == Count(0, 0, 3, 9)
    assert traffic.errors["not-a-cloudevent"] == Count(1, 1, 2, 6)
    assert traffic.total.messages == 1


def test_number_of_pairs_is_bounded():
    """The sums are complete, and pairs that become frequent later are counted separately."""
    traffic = Traffic(max_pairs=10)
    traffic.add(received("first"))
    for interval in range(3):
        for number in range(100):
            traffic.add(received(f"{interval} {number}"))
            assert len(traffic.pairs) <= 10
        traffic.begin_interval()
        assert len(traffic.pairs) == 5
    for _ in range(7):
        traffic.add(received("later"))
    rows, others = traffic.ranked(2)
    assert rows[0] == (("later", "/s"), Count(7, 7, 7, 7))
    assert len(rows) == 2
    assert rows[1][1].total_messages + others.total_messages == 301
    assert (others.messages, others.total_data_bytes) == (0, 300)


def test_frequent_pairs_are_kept():
    traffic = Traffic(max_pairs=10)
    for number in range(10):
        for _ in range(number + 1):
            traffic.add(received(f"t{number}"))
    traffic.begin_interval()
    assert {type_ for type_, _ in traffic.pairs} == {f"t{number}" for number in range(5, 10)}
    assert traffic.others == Count(0, 0, 15, 15)


def test_long_types_are_truncated():
    traffic = Traffic()
    traffic.add(received("t" * 100_000, "/s" * 100_000))
    ((type_, source),) = traffic.pairs
    assert (len(type_), len(source)) == (200, 200)
    assert type_.endswith("t…")


# --- Drawing ----------------------------------------------------------------------------------------------------------


def test_report_as_text():
    traffic = Traffic()
    for _ in range(3):
        traffic.add(received("paid", "/shop", data="xx"))
    traffic.add(received("sent", "/shop", data="xxxx"))
    traffic.add(received("sent", "/other"))
    traffic.add(not_an_event(b""))
    lines = [
        line.split() for line in drawn(report(traffic, consumer=Consumer("S", "c", Lag(5, 1200, 3))), 1).splitlines()
    ]
    assert [" ".join(line) for line in lines] == [
        "a.>: 6 messages in 10 s, now 3.0/s, 6 B/s",
        "modes: binary 5",
        "errors: not-a-cloudevent 1",
        "consumer c of stream S: 5 pending, 1,200 not acknowledged, 3 redelivered",
        "type source events events/s bytes/s bytes each",
        "paid /shop 3 1.5 3 B 2",
        "others 2 1.0 2 B 2",
    ]


def test_report_without_messages():
    text = drawn(report(Traffic(), consumer=Consumer("S", "c"), seconds=0.0))
    assert text.splitlines() == ["a.>: 0 messages in 10 s, now 0/s, 0 B/s", "consumer c of stream S: unknown"]


def test_types_and_sources_are_escaped():
    """Decoding accepts U+202E, which changes the text direction."""
    traffic = Traffic()
    traffic.add(received("[bold]t[/bold]", "/s\u202e"))
    text = drawn(report(traffic, consumer=Consumer("S", "c", pause=Pause(time.time() - 3, 0, "[bold]\u202e"))))
    assert "\u202e" not in text
    assert "[bold]t[/bold]  /s\\u202e" in text
    assert re.search(r"its handlers pause since \d+ s: \[bold\]\\u202e", text)


def test_report_as_json():
    traffic = Traffic()
    traffic.add(received("paid", "/shop", data="xx"))
    traffic.begin_interval()
    traffic.add(received("sent", "/shop"))
    one = {"messages": 1, "data_bytes": 1, "total_messages": 1, "total_data_bytes": 1}
    earlier = {"messages": 0, "data_bytes": 0, "total_messages": 1, "total_data_bytes": 2}
    both = {"messages": 1, "data_bytes": 1, "total_messages": 2, "total_data_bytes": 3}
    assert report_fields(report(traffic, consumer=Consumer("S", "c", Lag(1, 2, 3))), 1) == {
        "seconds": 2.0,
        **both,
        "modes": {"binary": both},
        "errors": {},
        "events": [{"type": "sent", "source": "/shop", **one}],
        "others": earlier,
        "consumer": {"stream": "S", "name": "c", "pending": 1, "ack_pending": 2, "redelivered": 3, "pause": None},
    }
    unknown = report_fields(report(traffic, consumer=Consumer("S", "c")), 1)["consumer"]
    assert unknown == {**dict.fromkeys(["pending", "ack_pending", "redelivered", "pause"]), "stream": "S", "name": "c"}
