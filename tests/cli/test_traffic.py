import json
import signal
import time

import pytest


def listening(process):
    assert process.stderr.readline().startswith(b"listening on ")


def test_from_pub_to_sub(start, at_server, event, subject):
    process = start("sub", subject, "--count", 3)
    listening(process)
    lines = event(1, data="€") + event(2) + event(3)
    assert at_server("pub", subject, stdin=lines).stderr == "3 published\n"
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    received = [line.split(" ", 1) for line in stdout.decode().splitlines()]
    assert [name for name, _ in received] == [subject] * 3
    assert json.loads(received[0][1])["data"] == "€"


def test_sub_as_json_with_a_message_that_is_not_an_event(start, at_server, with_js, event, subject):
    process = start("sub", "--json", subject)
    listening(process)

    async def send(js):
        await js._nc.publish(subject, b"\xff", headers={"a": "1"})

    with_js(send)
    at_server("pub", subject, "--mode", "structured", event())
    bad, good = json.loads(process.stdout.readline()), json.loads(process.stdout.readline())
    assert (bad["error"]["code"], bad["headers"], bad["data_base64"]) == ("not-a-cloudevent", [["a", "1"]], "/w==")
    assert (good["subject"], good["event"]["id"]) == (subject, "1")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, b"")


def test_sub_ends_when_the_pipe_is_closed(start, at_server, event, subject):
    process = start("sub", subject)
    listening(process)
    process.stdout.close()
    process.stdin.close()
    at_server("pub", subject, event())
    assert process.stderr.read() == b""
    assert process.wait(30) == 141


def test_pub_ends_while_it_waits_for_input(start, event, stream, stored, subject):
    """Events that were read before are stored."""
    process = start("pub", "-J", subject)
    process.stdin.write(event().encode())
    process.stdin.flush()
    for _ in range(1000):
        if stored(stream):
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert process.stderr.read() == b""
    assert len(stored(stream)) == 1


def test_pub_to_a_stream(at_server, event, stream, stored, subject):
    """With a subject template, further headers, and deduplication."""
    arguments = ["pub", "-J", f"{subject}.{{type}}", "-H", "Tag: a", "--json"]
    assert json.loads(at_server(*arguments, event()).stdout) == {"published": 1, "duplicates": 0, "refused": 0}
    assert json.loads(at_server(*arguments, event()).stdout) == {"published": 1, "duplicates": 1, "refused": 0}
    (message,) = stored(stream)
    assert (message.subject, dict(message.headers)["Tag"]) == (f"{subject}.t", "a")
    at_server(*arguments, "--dedup", "none", event())
    assert len(stored(stream)) == 2


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("Nats-Expected-Stream: OTHER", "expected stream does not match (10060)"),
        ("Nats-Expected-Last-Sequence: 5", "wrong last sequence: 1 (10071)"),
        ("Nats-Expected-Last-Subject-Sequence:0", "wrong last sequence: 1 (10071)"),
        ("Nats-Expected-Last-Msg-Id: other", "wrong last msg ID: /tests|1 (10070)"),
        ("Nats-Rollup: sub", "rollup not permitted (10111)"),
    ],
)
def test_pub_says_what_a_stream_refuses(at_server, event, stream, stored, subject, header, text):
    """With the server's own words and number; what holds is stored, header and all."""
    first = "Nats-Expected-Last-Subject-Sequence: 0"
    assert at_server("pub", "-J", subject, "-H", first, event()).exit_code == 0
    result = at_server("pub", "-J", subject, "-H", header, event(2))
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.splitlines()[-1] == f"ce-nats: publish-refused: {subject}: {text}"
    (message,) = stored(stream)
    assert ("Nats-Expected-Last-Subject-Sequence", "0") in message.headers


def test_pub_skips_invalid_events(at_server, event, stream, stored, subject):
    result = at_server("pub", "-J", subject, stdin=event(1) + event(2, time="now") + event(3))
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0].startswith("ce-nats: line 2: invalid-timestamp: ")
    assert [dict(message.headers)["ce-id"] for message in stored(stream)] == ["1", "3"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["pub", "-J", "nobody.listens"], "no-responders"),
        (["pub", "a", "--server", "nats://name:secret@127.0.0.1:1"], "connection-failed"),
        (["top", "a", "--server", "nats://name:secret@127.0.0.1:1"], "connection-failed"),
    ],
)
def test_errors_of_nats_are_status_3(at_server, event, arguments, code):
    result = at_server(*arguments, *([event()] if arguments[0] == "pub" else []))
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.splitlines()[-1].startswith(f"ce-nats: {code}: ")
    assert "secret" not in result.stderr


@pytest.mark.parametrize("command", ["sub", "top"])
def test_an_invalid_subject(at_server, command):
    result = at_server(command, "a b")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith("ce-nats: invalid-subject: ")
