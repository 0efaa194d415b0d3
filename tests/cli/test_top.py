"""The command ``top`` in a pipe and on a terminal."""

import asyncio
import json
import os
import re
import signal
import time

import nats
import pytest
from nats.js.api import ConsumerConfig

from ce_nats.aio._jetstream_api import StreamApi
from ce_nats.aio.consumer._outage import METADATA_KEY
from ce_nats.aio.jetstream import configure_stream
from ce_nats.testing import NatsServer
from tests.support import reading

# --- In a pipe --------------------------------------------------------------------------------------------------------


def listening(process):
    assert process.stderr.readline().startswith(b"listening on ")


def reports(process):
    """Return the reports of --json as an iterator."""
    return map(json.loads, process.stdout)


def test_top_prints_json(start, at_server, event, subject):
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


def test_top_counts_events_that_pass_a_filter(start, at_server, with_js, event, stream, subject):
    """And messages that are not events."""
    process = start("top", subject, "--json", "--interval", 0.1, "--filter", "type = 't' AND id LIKE '1%'")
    listening(process)
    at_server("pub", subject, stdin="".join(map(event, range(20))))
    at_server("pub", subject, event(1, type="other"))
    with_js(lambda js: js.publish(subject, b"not an event", stream=stream))
    at_server("pub", subject, event(11))
    found = next(one for one in reports(process) if one["total_messages"] >= 13)
    assert (found["total_messages"], found["errors"]["not-a-cloudevent"]["total_messages"]) == (13, 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


def test_top_counts_the_messages_of_batches(start, at_server, with_js, event, stream, subject):
    """And nothing else: neither kind of batch has messages that are not events."""
    with_js(lambda js: configure_stream(js, stream, allow_batched=True, allow_atomic=True))
    process = start("top", subject, "--json", "--interval", 0.1)
    listening(process)
    at_server("pub", "-J", subject, stdin="".join(map(event, range(100))))
    at_server("pub", "-J", "--atomic", subject, stdin="".join(map(event, range(100, 150))))
    at_server("pub", subject, event("last"))
    found = next(one for one in reports(process) if one["total_messages"] >= 151)
    assert found["total_messages"] == found["modes"]["binary"]["total_messages"] == 151
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


def test_top_prints_a_number_of_reports(start, at_server, event, subject):
    process = start("top", subject, "--interval", 0.1, "--count", 3)
    listening(process)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, b"")
    headings = re.findall(rf"^{re.escape(subject)}: \d+ messages in \d+ s, now ", stdout.decode(), re.MULTILINE)
    assert len(headings) == 3


def test_top_ends_when_the_pipe_is_closed(start, subject):
    process = start("top", subject, "--interval", 0.1)
    listening(process)
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""


def test_lag_of_a_consumer(start, at_server, with_js, event, stream, subject):
    """Pending, unacknowledged and redelivered messages; then the consumer is deleted."""

    async def create(js):
        await js.add_consumer(stream, ConsumerConfig(durable_name="billing", ack_wait=1000))

    async def fetch(js):
        subscription = await js.pull_subscribe_bind("billing", stream)
        messages = await reading.fetch(subscription, 5)
        await messages[0].nak()
        (again,) = await reading.fetch(subscription, 1)
        assert again.metadata.num_delivered == 2

    async def pause(js):
        report = json.dumps([time.time() - 9, time.time(), "Unavailable: database"])
        await StreamApi.of(js).annotate_consumer(stream, "billing", METADATA_KEY, lambda *_: report)

    async def delete(js):
        await js.delete_consumer(stream, "billing")

    with_js(create)
    process = start("top", subject, "--json", "--interval", 0.1, "--stream", stream, "--consumer", "billing")
    listening(process)
    at_server("pub", "-J", subject, stdin="".join(map(event, range(5))))
    names = {"stream": stream, "name": "billing"}
    lag = {"pending": 5, "ack_pending": 0, "redelivered": 0, "pause": None}
    assert any(one["total_messages"] == 5 and one["consumer"] == {**names, **lag} for one in reports(process))
    with_js(fetch)
    lag = {"pending": 0, "ack_pending": 5, "redelivered": 1, "pause": None}
    assert any(one["consumer"] == {**names, **lag} for one in reports(process))
    with_js(pause)
    paused = next(one["consumer"]["pause"] for one in reports(process) if one["consumer"]["pause"] is not None)
    assert paused["error"] == "Unavailable: database"
    assert 9 <= paused["seconds"] < 60
    with_js(delete)
    assert process.wait(60) == 3
    assert process.stderr.read().startswith(b"ce-nats: consumer-not-found: ")


def test_oldest_unsettled_messages_without_a_subject(at_server, with_js, event, stream, subject, monkeypatch):
    """Certain are the first one, and all if their number is that of the server."""
    monkeypatch.setenv("COLUMNS", "200")

    async def fetch(js, settled):
        config = ConsumerConfig(durable_name="billing", ack_wait=1000, filter_subject=f"{subject}.a")
        await js.add_consumer(stream, config)
        subscription = await js.pull_subscribe_bind("billing", stream)
        messages = await reading.fetch(subscription, 4)
        for number in settled:
            await messages[number].ack_sync()

    for number in range(4):
        for token in ("a", "b"):
            assert at_server("pub", "-J", f"{subject}.{token}", event(number, source=f"/{token}")).exit_code == 0
    for settled, expected in [((0,), [(3, True), (5, True), (7, True)]), ((0, 2), [(3, True), (5, False), (7, False)])]:
        with_js(fetch, settled)
        command = ["top", "--stream", stream, "--consumer", "billing", "--stuck", "--count", 1, "--interval", 0.1]
        shown = json.loads(at_server(*command, "--json").stdout)
        assert set(shown) == {"seconds", "consumer"}
        found = shown["consumer"]["unsettled"]
        assert [(one["sequence"], one["is_certain"]) for one in found] == expected
        assert found[0]["event"]["id"] == "1"
        assert found[0]["subject"] == f"{subject}.a"
        assert 0 <= found[0]["seconds"] < 60
        lines = at_server(*command).stdout.rstrip().splitlines()
        assert lines[0].startswith(f"consumer billing of stream {stream}: 0 pending, ")
        assert lines[1].startswith(f"not settled: message 3 on {subject}.a, stored ")
        assert lines[1].endswith(" s ago: id '1', source '/a', type 't'")
        assert len(lines) == 4
        with_js(lambda js: js.delete_consumer(stream, "billing"))


@pytest.mark.faults
def test_lag_is_unknown_while_the_server_is_down(start):
    with NatsServer(jetstream=True) as server:

        async def create():
            async with await nats.connect(server.url) as nc:
                await nc.jetstream().add_stream(name="S", subjects=["a"])
                await nc.jetstream().add_consumer("S", ConsumerConfig(durable_name="c"))

        asyncio.run(create())
        options = ["--json", "--interval", 0.1, "--timeout", 2, "--stream", "S", "--consumer", "c"]
        process = start("top", "a", *options, url=server.url)
        listening(process)
        assert any(one["consumer"]["pending"] == 0 for one in reports(process))
        server.kill()
        assert any(one["consumer"]["pending"] is None for one in reports(process))
        server.start()
        assert any(one["consumer"]["pending"] == 0 for one in reports(process))
        assert b"connection lost" in process.stderr.readline()
        assert b"reconnected" in process.stderr.readline()


def test_missing_consumers_and_streams_are_errors(at_server, cli, stream, subject):
    for options, code in {
        ("--stream", stream, "--consumer", "none"): "consumer-not-found",
        ("--stream", "NOWHERE", "--consumer", "none"): "stream-not-found",
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


# --- On a terminal ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are needed")
def test_table_is_redrawn_until_ctrl_c(at_server, event, screen):
    """Messages about the connection are printed above it, and the last table is kept."""
    with NatsServer() as server:
        top = screen("top", "shop.>", "--interval", 0.1, url=server.url)
        top.wait_for("listening on shop.>")
        top.wait_for("shop.>: 0 messages in ")
        at_server("pub", "shop.paid", "--server", server.url, stdin=event(1, type="paid") + event(2, type="paid"))
        top.wait_for(r"shop.>: 2 messages in [^$]+paid +/tests +2 ")
        server.kill()
        top.wait_for("ce-nats: connection lost; messages published before it is restored are not received\n")
        server.start()
        top.wait_for("ce-nats: reconnected\n")
        at_server("pub", "shop.paid", "--server", server.url, event(3, type="paid"))
        top.wait_for(r"paid +/tests +3 ")
        top.process.send_signal(signal.SIGINT)
        rest = top.rest()
        assert top.process.wait(60) == 0
    assert "\x1b[?25h" in rest  # the cursor is visible again
    assert "ce-nats:" not in rest


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are needed")
def test_table_fits_the_terminal(at_server, event, screen, subject):
    top = screen("top", subject, "--interval", 0.1, LINES="10")
    top.wait_for(f"listening on {subject}")
    at_server("pub", subject, stdin="".join(event(number, type=f"t{number}") for number in range(50)))
    shown = top.wait_for(f"{subject}: 50 messages in [^$]+others +46 ")
    table = shown[shown.rindex(f"{subject}: 50 messages") :]
    assert len(table.split("\n")) <= 10
