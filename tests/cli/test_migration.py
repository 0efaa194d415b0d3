"""The command ``migrate``, from a streaming server with an embedded NATS server to the nats-server of these tests."""

import asyncio
import json
import os
import re
import signal
from contextlib import contextmanager
from uuid import uuid4

import nats
import pytest

from ce_nats import stan
from ce_nats.stan import Start
from ce_nats.stan.migration import SEQUENCE
from tests.support.relay import Relay
from tests.support.streaming import CLUSTER, StreamingServer, executable
from tests.support.waiting import until

__all__ = ["executable"]


@pytest.fixture(scope="session")
def streaming(executable):
    with StreamingServer(executable) as streaming:
        yield streaming


@pytest.fixture
def source(streaming):
    return ["--from-server", streaming.url, "--monitor", streaming.monitor]


@pytest.fixture
def with_stan(streaming):
    """Return a function that runs an asynchronous function with a client of the streaming server."""

    def run(function, client_id=None, url=streaming.url):
        async def connected():
            async with (
                await nats.connect(url) as nc,
                await stan.connect(nc, CLUSTER, client_id or f"client-{uuid4().hex}") as connection,
            ):
                return await function(connection)

        return asyncio.run(connected())

    return run


@pytest.fixture
def fill(with_stan, subject):
    def fill(*payloads, **options):
        async def publish(connection):
            await asyncio.gather(*[await connection._send(payload, subject) for payload in payloads])

        with_stan(publish, **options)

    return fill


def test_summary_has_the_counts(at_server, fill, source, stream, stored, subject, event):
    fill(event(1).encode(), b"no event", event(1, n="again").encode())
    done = at_server("migrate", subject, stream, *source)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == (
        f"3 of 3 messages of channel {subject} are in stream {stream}; this run copied 3: 2 events, 1 other\n"
        "duplicates by source and id, kept: 1 event\n"
    )
    done = at_server("migrate", subject, stream, *source, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "channel": subject,
        "stream": stream,
        "expired": 0,
        "messages": 3,
        "stored": 3,
        "repeated": 0,
        "copied": 0,
        "events": 0,
        "duplicates": 0,
        "gaps": [],
        "consumers": {},
        "complete": True,
    }
    assert [message.data for message in stored(stream)] == [
        *(event(1).encode(), b"no event", event(1, n="again").encode())
    ]


def test_incomplete_stream_is_status_1(at_server, fill, source, stream, subject, with_js):
    fill(b"1", b"2", b"3")

    async def shrink(js):
        await js.update_stream(name=stream, subjects=[subject, f"{subject}.>"], storage="memory", max_msgs=1)

    with_js(shrink)
    done = at_server("migrate", subject, stream, *source)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"1 of 3 messages of channel {subject}")


@contextmanager
def relay_that(act, url, after):
    """A relay of a server that calls a function, with the relay, when it has transmitted a number of bytes."""
    left = after

    def count(chunk):
        nonlocal left
        before, left = left, left - len(chunk)
        if before > 0 >= left:
            act(relay)
        return chunk

    with Relay(url) as relay:
        relay.lost = count
        yield ["--from-server", relay.url]


@pytest.fixture
def payloads(event):
    return [b"%d" % number if number % 3 else event(number).encode() for number in range(1, 5001)]


@pytest.fixture
def complete(at_server, payloads, source, stored, stream, subject):
    """Return a function that completes a migration; then the stream has each message once, unchanged."""

    def run():
        done = at_server("migrate", subject, stream, *source, "--json")
        assert done.exit_code == 0, done.output
        counts = json.loads(done.stdout)
        assert (counts["messages"], counts["stored"], counts["repeated"]) == (len(payloads), len(payloads), 0)
        assert 0 < counts["copied"] < len(payloads)
        messages = stored(stream)
        assert [int(dict(message.headers)[SEQUENCE]) for message in messages] == list(range(1, len(payloads) + 1))
        assert [message.data for message in messages] == payloads

    return run


def test_interrupted_migration_is_continued(
    at_server, complete, fill, payloads, source, stored, stream, streaming, subject
):
    fill(*payloads)
    with relay_that(lambda _: os.kill(os.getpid(), signal.SIGTERM), streaming.url, 300_000) as through:
        done = at_server("migrate", subject, stream, *source, *through)
    assert done.exit_code == 143
    (sent,) = re.fullmatch(rf"([0-9]+) of 5000 messages sent to stream {stream}; .*\n", done.stderr).groups()
    assert len(stored(stream)) <= int(sent) < 5000
    complete()


@pytest.mark.faults
def test_killed_migrations_are_continued(complete, fill, payloads, source, start, stream, streaming, subject, with_js):
    """Each run begins with the last message of the run before, and is killed when it copies others."""
    fill(*payloads)

    async def reached(js, before):
        async def are_more():
            messages = (await js.stream_info(stream)).state.messages
            return messages if messages > before else None

        return await until(are_more)

    copied = 0
    for size in (100_000, 250_000, 250_000):
        with relay_that(Relay.interrupt, streaming.url, size) as through:
            process = start("migrate", subject, stream, *source, *through)
            copied = with_js(reached, copied)
            process.kill()
            process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert 0 < copied < len(payloads)
    complete()


def test_progress_on_a_terminal(at_terminal, fill, source, stream, subject):
    fill(*[b"x"] * 500)
    status, output, drawn = at_terminal("migrate", subject, stream, *source, "--json")
    assert (status, json.loads(output)["copied"]) == (0, 500)
    assert "500/500" in drawn


def test_durables_become_consumers(at_server, fill, source, stream, stored, subject, with_js, with_stan):
    fill(b"1", b"2", b"3")

    async def read(connection):
        for options, count in [({"durable": "d:e"}, 2), ({"durable": "d", "queue": "q"}, 1)]:
            async with await connection.subscribe(subject, start=Start.first(), max_in_flight=1, **options) as items:
                for _ in range(count):
                    await (await items.__anext__()).ack()

    with_stan(read, client_id="billing")
    durables = ["--durable", "billing:d:e=one", "--queue-durable", "q:d=two"]
    done = at_server("migrate", subject, stream, *source, *durables, "--subject", f"{subject}.new")
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines()[1:] == ["consumer one starts at message 3", "consumer two starts at message 2"]
    assert {message.subject for message in stored(stream)} == {f"{subject}.new"}

    async def positions(js):
        return [(await js.consumer_info(stream, name)).config.opt_start_seq for name in ("one", "two")]

    assert with_js(positions) == [3, 2]


def test_streaming_server_of_a_context(at_server, fill, monkeypatch, streaming, stream, subject, tmp_path):
    fill(b"1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    context = tmp_path / "nats" / "context" / "old.json"
    context.parent.mkdir(parents=True)
    context.write_text(json.dumps({"url": streaming.url}))
    done = at_server("migrate", subject, stream, "--from-context", "old", "--monitor", streaming.monitor)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    "option",
    [
        *(
            ["--durable", text]
            for text in ("billing=c", "billing:d", ":d=c", "billing:=c", "billing:d=", "b:d=a.b", "")
        ),
        ["--queue-durable", "d=c"],
        ["--durable", "billing:d=c", "--queue-durable", "q:d=c"],
    ],
    ids=" ".join,
)
def test_invalid_durables_are_usage_errors(cli, option):
    done = cli("migrate", "orders", "ORDERS", *option)
    assert done.exit_code == 2
    assert re.search("must be (CLIENT|GROUP):NAME=CONSUMER, got '.*'$|got two for 'c'$", done.stderr)


def test_errors(at_server, fill, source, stream, subject, streaming):
    """A missing channel, a missing stream and wrong servers are errors of one line."""
    done = at_server("migrate", subject, stream, *source)
    text = f"ce-nats: stream-not-found: the streaming server has no channel '{subject}'\n"
    assert (done.exit_code, done.stderr) == (3, text)
    fill(b"1")
    done = at_server("migrate", subject, "NONE", *source)
    assert (done.exit_code, done.stderr) == (3, "ce-nats: stream-not-found: there is no stream NONE\n")
    done = at_server("migrate", subject, stream, "--monitor", "localhost")
    assert done.exit_code == 2
    assert "monitoring must be a URL like" in done.stderr
    # The streaming server is not on the NATS of the stream.
    done = at_server("migrate", subject, stream, "--monitor", streaming.monitor, "--timeout", "0.5")
    assert done.exit_code == 3
    assert "stan: connect request timeout (possibly wrong cluster ID?)" in done.stderr
