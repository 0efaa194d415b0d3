"""What is counted, how it is drawn, and the command itself: in a pipe, and at a terminal."""

import asyncio
import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import nats
import pytest
from nats.js.api import ConsumerConfig

from ce_nats import NatsMessage, to_nats_message
from ce_nats.aio._jetstream_api import Lag
from ce_nats.aio.core._subscribe import receive
from ce_nats.cli._codec import read_event
from ce_nats.cli._terminal import console
from ce_nats.cli._top import Consumer, Count, Report, Traffic, drawing, fields
from ce_nats.codec.binding import from_nats_message
from ce_nats.testing import NatsServer


def received(type_="t", source="/s", *, data="x", mode="binary"):
    event = {"specversion": "1.0", "id": "1", "source": source, "type": type_, "datacontenttype": "text/plain"}
    message = to_nats_message(read_event(json.dumps({**event, "data": data}).encode()), "a", mode=mode)
    return receive(message, from_nats_message)


def no_event(data=b"no"):
    return receive(NatsMessage("a", data), from_nats_message)


def report(traffic, *, consumer=None, seconds=2.0):
    return Report("a.>", seconds, 10.0, traffic, consumer)


def drawn(given, limit=20, width=200):
    paper = console()
    paper.width = width
    with paper.capture() as captured:
        paper.print(drawing(given, limit))
    return captured.get()


# --- Counting ---------------------------------------------------------------------------------------------------------


def test_messages_are_counted_by_type_and_source_mode_and_error():
    traffic = Traffic()
    for _ in range(3):
        traffic.add(received("paid", "/shop", data="€"))
    traffic.add(received("paid", "/other", data="four", mode="structured"))
    traffic.add(no_event(b"12345"))
    structured = traffic.modes["structured"].data_bytes
    assert traffic.pairs[("paid", "/shop")] == Count(3, 9, 3, 9)
    assert traffic.pairs[("paid", "/other")] == traffic.modes["structured"] == Count(1, structured, 1, structured)
    assert structured > 50  # of a structured message, the event is the payload
    assert traffic.modes["binary"] == Count(3, 9, 3, 9)
    assert dict(traffic.errors) == {"not-a-cloudevent": Count(1, 5, 1, 5)}
    assert traffic.total == Count(5, 14 + structured, 5, 14 + structured)
    traffic.begin_interval()
    traffic.add(no_event(b"1"))
    assert traffic.pairs[("paid", "/shop")] == Count(0, 0, 3, 9)
    assert traffic.errors["not-a-cloudevent"] == Count(1, 1, 2, 6)
    assert traffic.total.messages == 1


def test_the_number_of_pairs_has_a_bound():
    """However many arrive; nothing is lost from the sums, and what is frequent later is counted apart."""
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


def test_what_is_frequent_stays_when_room_is_made():
    traffic = Traffic(max_pairs=10)
    for number in range(10):
        for _ in range(number + 1):
            traffic.add(received(f"t{number}"))
    traffic.begin_interval()
    assert {type_ for type_, _ in traffic.pairs} == {f"t{number}" for number in range(5, 10)}
    assert traffic.others == Count(0, 0, 15, 15)


def test_long_types_take_no_more_memory_than_others():
    traffic = Traffic()
    traffic.add(received("t" * 100_000, "/s" * 100_000))
    ((type_, source),) = traffic.pairs
    assert (len(type_), len(source)) == (200, 200)
    assert type_.endswith("t…")


# --- Drawing ----------------------------------------------------------------------------------------------------------


def test_a_report_for_people():
    traffic = Traffic()
    for _ in range(3):
        traffic.add(received("paid", "/shop", data="xx"))
    traffic.add(received("sent", "/shop", data="xxxx"))
    traffic.add(received("sent", "/other"))
    traffic.add(no_event(b""))
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


def test_a_report_without_anything():
    text = drawn(report(Traffic(), consumer=Consumer("S", "c"), seconds=0.0))
    assert text.splitlines() == ["a.>: 0 messages in 10 s, now 0/s, 0 B/s", "consumer c of stream S: unknown"]


def test_a_type_cannot_give_commands_to_the_terminal():
    """As far as decoding lets one through: U+202E turns the direction of what follows."""
    traffic = Traffic()
    traffic.add(received("[bold]t[/bold]", "/s\u202e"))
    text = drawn(report(traffic))
    assert "\u202e" not in text
    assert "[bold]t[/bold]  /s\\u202e" in text


def test_a_report_for_machines():
    traffic = Traffic()
    traffic.add(received("paid", "/shop", data="xx"))
    traffic.begin_interval()
    traffic.add(received("sent", "/shop"))
    one = {"messages": 1, "data_bytes": 1, "total_messages": 1, "total_data_bytes": 1}
    earlier = {"messages": 0, "data_bytes": 0, "total_messages": 1, "total_data_bytes": 2}
    both = {"messages": 1, "data_bytes": 1, "total_messages": 2, "total_data_bytes": 3}
    assert fields(report(traffic, consumer=Consumer("S", "c", Lag(1, 2, 3))), 1) == {
        "seconds": 2.0,
        **both,
        "modes": {"binary": both},
        "errors": {},
        "events": [{"type": "sent", "source": "/shop", **one}],
        "others": earlier,
        "consumer": {"stream": "S", "name": "c", "pending": 1, "ack_pending": 2, "redelivered": 3},
    }
    unknown = fields(report(traffic, consumer=Consumer("S", "c")), 1)["consumer"]
    assert unknown == {"stream": "S", "name": "c", "pending": None, "ack_pending": None, "redelivered": None}


# --- In a pipe --------------------------------------------------------------------------------------------------------


def listening(process):
    assert process.stderr.readline().startswith(b"listening on ")


def reports(process):
    """Reports of --json, as they come."""
    return map(json.loads, process.stdout)


def test_top_for_machines(start, at_server, event, subject):
    process = start("top", f"{subject}.>", "--json", "--interval", 0.1, "--limit", 1)
    listening(process)
    at_server("pub", f"{subject}.a", stdin="".join(event(number, data=1) for number in range(5)))
    at_server("pub", f"{subject}.b", event(type="other"))
    found = next(one for one in reports(process) if one["total_messages"] == 6)
    assert found["modes"]["binary"]["total_messages"] == 6
    assert found["events"][0]["type"] in {"t", "other"}
    assert found["events"][0]["total_messages"] + found["others"]["total_messages"] == 6
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, b"")


def test_a_number_of_reports_for_people(start, at_server, event, subject):
    process = start("top", subject, "--interval", 0.1, "--count", 3)
    listening(process)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, b"")
    headings = re.findall(rf"^{re.escape(subject)}: \d+ messages in \d+ s, now ", stdout.decode(), re.MULTILINE)
    assert len(headings) == 3


def test_top_ends_when_nobody_reads(start, subject):
    process = start("top", subject, "--interval", 0.1)
    listening(process)
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""


def test_the_lag_of_a_consumer(start, at_server, with_js, event, stream, subject):
    """What waits for it, what it holds, and what came twice; then it is deleted."""

    async def create(js):
        await js.add_consumer(stream, ConsumerConfig(durable_name="billing", ack_wait=1000))

    async def fetch(js):
        subscription = await js.pull_subscribe_bind("billing", stream)
        messages = await subscription.fetch(5)
        await messages[0].nak()
        (again,) = await subscription.fetch(1)
        assert again.metadata.num_delivered == 2

    async def delete(js):
        await js.delete_consumer(stream, "billing")

    with_js(create)
    process = start("top", subject, "--json", "--interval", 0.1, "--stream", stream, "--consumer", "billing")
    listening(process)
    at_server("pub", "-J", subject, stdin="".join(map(event, range(5))))
    names = {"stream": stream, "name": "billing"}
    lag = {"pending": 5, "ack_pending": 0, "redelivered": 0}
    assert next(one for one in reports(process) if one["total_messages"] == 5)["consumer"] == {**names, **lag}
    with_js(fetch)
    lag = {"pending": 0, "ack_pending": 5, "redelivered": 1}
    assert any(one["consumer"] == {**names, **lag} for one in reports(process))
    with_js(delete)
    assert process.wait(60) == 3
    assert process.stderr.read().startswith(b"ce-nats: consumer-not-found: ")


def test_the_lag_is_unknown_while_the_server_is_away(start):
    with NatsServer(jetstream=True) as server:

        async def create():
            async with await nats.connect(server.url) as nc:
                await nc.jetstream().add_stream(name="S", subjects=["a"])
                await nc.jetstream().add_consumer("S", ConsumerConfig(durable_name="c"))

        asyncio.run(create())
        options = ["--json", "--interval", 0.1, "--timeout", 0.5, "--stream", "S", "--consumer", "c"]
        process = start("top", "a", *options, url=server.url)
        listening(process)
        assert next(reports(process))["consumer"]["pending"] == 0
        server.kill()
        assert any(one["consumer"]["pending"] is None for one in reports(process))
        server.start()
        assert any(one["consumer"]["pending"] == 0 for one in reports(process))
        assert b"the connection is lost" in process.stderr.readline()
        assert b"the connection is back" in process.stderr.readline()


def test_what_there_is_no_lag_of(at_server, cli, stream, subject):
    for options, code in {
        ("--stream", stream, "--consumer", "nobody"): "consumer-not-found",
        ("--stream", "NOWHERE", "--consumer", "nobody"): "stream-not-found",
    }.items():
        result = at_server("top", subject, *options)
        assert (result.exit_code, result.stdout) == (3, "")
        assert result.stderr.splitlines()[-1].startswith(f"ce-nats: {code}: ")
    with NatsServer() as plain:
        result = cli("top", "a", "--stream", "S", "--consumer", "c", "--server", plain.url)
    assert (result.exit_code, result.stderr.splitlines()[-1][:25]) == (3, "ce-nats: no-responders: c")
    for options in (["--stream", stream], ["--consumer", "c"]):
        result = at_server("top", subject, *options)
        assert (result.exit_code, result.stderr) == (
            2,
            "ce-nats: invalid-option: --stream and --consumer must be used together\n",
        )


# --- At a terminal ----------------------------------------------------------------------------------------------------


class Screen:
    """A command at a terminal: what it has drawn so far."""

    def __init__(self, *arguments, **environment):
        import pty

        self._master, terminal = pty.openpty()
        known = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        command = [sys.executable, "-m", "ce_nats", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, env={**known, **environment}
        )
        os.close(terminal)
        self.text = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def wait_for(self, pattern, seconds=60):
        """Wait until something is drawn; returns all that was drawn up to there, and forgets it."""
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.text!r}"
            if select.select([self._master], [], [], 1)[0]:
                self._read()
        before, self.text = self.text[: found.end()], self.text[found.end() :]
        return before

    def rest(self):
        """What is drawn until the command ends."""
        while self._read():
            pass
        return self.text

    def _read(self):
        try:
            chunk = os.read(self._master, 65536)
        except OSError:  # its other end is closed
            chunk = b""
        self.text += chunk.decode("utf-8", "replace")
        return chunk


@pytest.mark.skipif(os.name != "posix", reason="there are no pseudo-terminals")
def test_the_table_is_drawn_anew_until_ctrl_c(at_server, event):
    """What is said of the connection stands above it, and the last table stays."""
    with NatsServer() as server, Screen("top", "shop.>", "--interval", 0.1, NATS_URL=server.url) as screen:
        screen.wait_for("listening on shop.>")
        screen.wait_for("shop.>: 0 messages in ")
        at_server("pub", "shop.paid", "--server", server.url, stdin=event(1, type="paid") + event(2, type="paid"))
        screen.wait_for(r"shop.>: 2 messages in [^$]+paid +/tests +2 ")
        server.kill()
        screen.wait_for("ce-nats: the connection is lost; messages published until it is back are not received\r\n")
        server.start()
        screen.wait_for("ce-nats: the connection is back\r\n")
        at_server("pub", "shop.paid", "--server", server.url, event(3, type="paid"))
        screen.wait_for(r"paid +/tests +3 ")
        screen.process.send_signal(signal.SIGINT)
        rest = screen.rest()
        assert screen.process.wait(60) == 0
    assert "\x1b[?25h" in rest  # the cursor is back
    assert "ce-nats:" not in rest


@pytest.mark.skipif(os.name != "posix", reason="there are no pseudo-terminals")
def test_the_table_fits_the_terminal(at_server, event):
    with (
        NatsServer() as server,
        Screen("top", "shop", "--interval", 0.1, NATS_URL=server.url, LINES="10") as screen,
    ):
        screen.wait_for("listening on shop")
        events = "".join(event(number, type=f"t{number}") for number in range(50))
        at_server("pub", "shop", "--server", server.url, stdin=events)
        shown = screen.wait_for("shop: 50 messages in [^$]+others +46 ")
        table = shown[shown.rindex("shop: 50 messages") :]
        assert len(table.split("\r\n")) <= 10
