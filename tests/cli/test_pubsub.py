import json
import re
import select
import signal

import pytest

from ce_nats.aio.jetstream import configure_stream
from tests.support.reading import until_stored


def listening(process):
    assert process.stderr.readline().startswith(b"listening on ")


def test_sub_prints_events_of_pub(start, at_server, event, subject):
    process = start("sub", subject, "--count", 3)
    listening(process)
    lines = event(1, data="€") + event(2) + event(3)
    assert at_server("pub", subject, stdin=lines).stderr == "3 published\n"
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    received = [json.loads(line) for line in stdout.splitlines()]
    assert [line["subject"] for line in received] == [subject] * 3
    assert received[0]["event"]["data"] == "€"


def test_pub_reports_subjects_without_a_subscriber(start, at_server, event, stream, subject):
    """Each one once; a stream and a subscription listen."""
    process = start("sub", f"heard.{subject}", "--count", 2)
    listening(process)
    for heard in (subject, f"heard.{subject}"):
        result = at_server("pub", heard, stdin=event(1) + event(2))
        assert (result.exit_code, result.stderr) == (0, "2 published\n")
    process.communicate(timeout=60)
    result = at_server("pub", f"{{type}}.{subject}", stdin=event(1) + event(2) + event(3, type="u"))
    text = "its events are lost; --jetstream publishes to a stream"
    notes = [f"ce-nats: no subscriber on {kind}.{subject}: {text}" for kind in "tu"]
    assert (result.exit_code, result.stderr.splitlines()) == (0, [*notes, "3 published"])
    assert at_server("pub", f"unheard.{subject}", "--reply", "a", event()).stderr == "1 published\n"
    many = "".join(event(number, type=f"t{number}") for number in range(8))
    lines = at_server("pub", f"{{type}}.{subject}", stdin=many).stderr.splitlines()
    assert lines[-2:] == ["ce-nats: no subscriber on 3 other subjects, either", "8 published"]
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--all"], [0, 1, 2, 3]),
        (["{subject}.a", "--all"], [0, 2]),
        (["--all", "--count", 3], [0, 1, 2]),
        (["--since", "1h"], [0, 1, 2, 3]),
        (["--since", "{third}"], [2, 3]),
        (["--last-per-subject"], [2, 3]),
        (["{subject}.b", "--last-per-subject"], [3]),
    ],
    ids=str,
)
def test_sub_prints_events_of_a_stream(at_server, stored, event, stream, subject, options, expected):
    for number in range(4):
        assert at_server("pub", "-J", f"{subject}.{'ab'[number % 2]}", event(number)).exit_code == 0
    third = str(stored(stream)[2].timestamp)
    given = [str(option).format(subject=subject, third=third) for option in options]
    result = at_server("sub", *given, "--stream", stream)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [int(json.loads(line)["event"]["id"]) for line in result.stdout.splitlines()] == expected


def id_of_line(process):
    return int(json.loads(process.stdout.readline())["event"]["id"])


def stopped(process):
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr


@pytest.mark.parametrize(("option", "begin"), [("--all", [0, 1]), ("--last-per-subject", [1])])
def test_sub_follows_a_stream(start, at_server, event, stream, subject, option, begin):
    at_server("pub", "-J", subject, stdin=event(0) + event(1))
    process = start("sub", "--stream", stream, option, "--follow")
    assert [id_of_line(process) for _ in begin] == begin
    for number in (2, 3):
        at_server("pub", "-J", subject, event(number))
        assert id_of_line(process) == number
    assert stopped(process) == (0, b"")


def test_sub_prints_new_events_of_a_stream(start, at_server, event, stream, subject):
    at_server("pub", "-J", subject, event(0))
    process = start("sub", "--stream", stream)
    number = 0
    while not select.select([process.stdout], [], [], 1)[0]:
        number += 1
        at_server("pub", "-J", subject, event(number))
    assert 0 < id_of_line(process) <= number
    assert stopped(process) == (0, b"")


def test_sub_of_a_stream_that_is_created_again_ends(start, at_server, with_js, event, stream, subject):
    at_server("pub", "-J", subject, event(0))
    process = start("sub", "--stream", stream, "--all", "--follow")
    assert id_of_line(process) == 0

    async def create_again(js):
        await js.delete_stream(stream)
        await js.add_stream(name=stream, subjects=[subject])

    with_js(create_again)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr.split(b": ")[1]) == (3, b"stream-mismatch")


def test_sub_of_a_stream_that_does_not_exist(at_server):
    assert at_server("sub", "--stream", "NONE", "--all").exit_code == 3


def test_sub_prints_messages_of_a_stream_that_are_not_events(at_server, with_js, event, stream, subject):
    with_js(lambda js: js.publish(subject, b"\xff", headers={"a": "1"}))
    result = at_server("sub", "--stream", stream, "--all")
    bad = json.loads(result.stdout)
    assert (bad["error"]["code"], bad["headers"], bad["data_base64"]) == ("not-a-cloudevent", [["a", "1"]], "/w==")


def test_sub_prints_messages_that_are_not_events_as_json(start, at_server, with_js, event, subject):
    process = start("sub", "--json", subject)
    listening(process)

    async def send(js):
        await js._nc.publish(subject, b"\xff", headers={"a": "1"})
        core = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
        await js._nc.publish(subject, b"", headers={**core, "Nats-Msg-Size": "13"})

    with_js(send)
    at_server("pub", subject, "--mode", "structured", event())
    bad, bare, good = (json.loads(process.stdout.readline()) for _ in range(3))
    assert bare["error"]["code"] == "data-not-delivered"
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


def test_pub_can_be_stopped_while_it_waits_for_input(start, event, stream, stored, subject, with_js):
    """Events that were already read are stored."""
    process = start("pub", "-J", subject)
    process.stdin.write(event().encode())
    process.stdin.flush()
    with_js(until_stored, stream, 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert process.stderr.read() == b"1 published\n"
    assert len(stored(stream)) == 1


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
def test_interrupted_pub_prints_its_count(start, event, stream, stored, subject, with_js, is_stored, as_json):
    """The counts agree with the messages in the stream."""
    options = (["-J"] if is_stored else []) + (["--json"] if as_json else [])
    process = start("pub", subject, *options)
    process.stdin.write("".join(map(event, range(2500))).encode() + b"not an event\n")
    process.stdin.flush()
    assert b"invalid-json: line 2501" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130  # communicate() would also close standard input, which ends the command
    stdout, stderr = process.communicate()
    if as_json:
        summary = json.loads(stdout)
        assert (summary["refused"], stderr) == (1, b"")
    else:
        found = re.fullmatch(rb"([0-9]+) published(?:; ([0-9]+) sent and not acknowledged)?\n", stderr)
        summary = {"published": int(found[1]), "unacknowledged": int(found[2] or 0)}
    assert summary["published"] + summary["unacknowledged"] == 2500
    with_js(until_stored, stream, summary["published"])
    assert len(stored(stream)) <= 2500
    assert is_stored or summary["unacknowledged"] == 0


def test_failed_pub_prints_its_count(at_server, event, stream, subject):
    refused = event(2, partition="a b")
    result = at_server(
        "pub", "-J", f"{subject}.{{type}}", "-H", "Nats-Expected-Last-Sequence: 0", stdin=event() + refused
    )
    assert result.exit_code == 3
    summary, error = result.stderr.splitlines()
    assert summary == "1 published; 1 refused by the stream"
    assert error.startswith("ce-nats: publish-refused: ")


def test_pub_accepts_output_of_sub(start, at_server, event, stream, stored, subject):
    process = start("sub", f"from.{subject}", "--count", 2)
    listening(process)
    given = [event(1, data={"a": 1.0}), event(2, data="€")]
    assert at_server("pub", f"from.{subject}", stdin="".join(given)).exit_code == 0
    lines, _ = process.communicate(timeout=60)
    assert at_server("pub", "-J", subject, "-m", "structured", stdin=lines).stderr == "2 published\n"
    copies = [json.loads(message.data) for message in stored(stream)]
    assert [(copy["id"], copy["data"]) for copy in copies] == [("1", {"a": 1.0}), ("2", "€")]
    assert b'{"a":1.0}' in stored(stream)[0].data


def test_pub_reads_a_file(at_server, event, stream, stored, subject, tmp_path):
    (tmp_path / "events.jsonl").write_text(event(1) + event(2))
    assert at_server("pub", "-J", subject, tmp_path / "events.jsonl", stdin="not read").stderr == "2 published\n"
    assert len(stored(stream)) == 2
    result = at_server("pub", subject, tmp_path / "none.jsonl")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"ce-nats: file-not-found: No such file or directory: '{tmp_path / 'none.jsonl'}'\n"


def test_pub_to_a_stream(at_server, event, stream, stored, subject):
    """With a subject template, options headers, and deduplication."""
    none = {"batched": 0, "refused": 0, "refused_by_stream": 0, "unacknowledged": 0}
    arguments = ["pub", "-J", f"{subject}.{{type}}", "-H", "Tag: a", "--json"]
    assert json.loads(at_server(*arguments, event()).stdout) == {"published": 1, "duplicates": 0, **none}
    assert json.loads(at_server(*arguments, event()).stdout) == {"published": 1, "duplicates": 1, **none}
    (message,) = stored(stream)
    assert (message.subject, dict(message.headers)["Tag"]) == (f"{subject}.t", "a")
    at_server(*arguments, "--dedup", "none", event())
    assert len(stored(stream)) == 2


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("Nats-Expected-Last-Subject-Sequence:0", "wrong last sequence: 1 (10071)"),
    ],
)
def test_pub_prints_the_refusal_of_a_stream(at_server, event, stream, stored, subject, header, text):
    """With text and error code of the server; if the expectation holds, the message is stored with the header."""
    first = "Nats-Expected-Last-Subject-Sequence: 0"
    assert at_server("pub", "-J", subject, "-H", first, event()).exit_code == 0
    result = at_server("pub", "-J", subject, "-H", header, event(2))
    assert (result.exit_code, result.stdout) == (3, "")
    expected = f"ce-nats: publish-refused: {subject}: {text}; event with id '2', "
    assert result.stderr.splitlines()[-1].startswith(expected)
    (message,) = stored(stream)
    assert ("Nats-Expected-Last-Subject-Sequence", "0") in message.headers


def test_pub_sends_the_time_until_expiry(at_server, event, stream, stored, subject, with_js):
    """An expired event is invalid; a stream without the setting refuses."""

    async def allow_ttl(js):
        await js.update_stream((await js.stream_info(stream)).config.evolve(allow_msg_ttl=True))

    lasting, expired = event(1, expirytime="9999-01-01T00:00:00Z"), event(2, expirytime="2020-01-01T00:00:00Z")
    result = at_server("pub", "-J", "--expiry", subject, lasting)
    assert "per-message TTL is disabled (10166)" in result.stderr
    with_js(allow_ttl)
    assert at_server("pub", "-J", "--expiry", subject, lasting).exit_code == 0
    result = at_server("pub", "-J", "--expiry", subject, expired)
    assert (result.exit_code, "event-expired" in result.stderr) == (1, True)
    assert at_server("pub", "-J", subject, expired).exit_code == 0
    assert [dict(message.headers).get("Nats-TTL") for message in stored(stream)] == ["3153600000s", None]
    assert at_server("pub", "--expiry", subject, lasting).exit_code == 2


def test_pub_schedules_events(at_server, event, stream, stored, subject, with_js):
    with_js(lambda js: configure_stream(js, stream, allow_msg_schedules=True))
    ways = {
        "@at 2099-01-01T00:00:00Z": ["--at", "2099-01-01T00:00:00Z"],
        "@every 90.000000s": ["--every", "1m30s"],
        "0 0 5 * * mon-fri": ["--cron", "0 0 5 * * mon-fri", "--time-zone", "UTC"],
    }
    for number, schedule in enumerate([*ways.values(), ["--after", "1h30m"]]):
        given = event(f"{number}-a") + event(f"{number}-b")
        result = at_server("pub", "-J", f"{subject}.{{id}}", *schedule, "--target", f"{subject}.to.{{id}}", stdin=given)
        assert (result.exit_code, result.stderr) == (0, "2 published\n")
    found = [dict(message.headers) for message in stored(stream)]
    assert [headers["Nats-Schedule"] for headers in found[:6]] == [way for way in ways for _ in range(2)]
    assert found[6]["Nats-Schedule"] < found[7]["Nats-Schedule"]
    assert found[5]["Nats-Schedule-Time-Zone"] == "UTC"
    assert found[1]["Nats-Schedule-Target"] == f"{subject}.to.0-b"


@pytest.mark.parametrize("way", ["--jetstream", "--atomic"])
def test_pub_refuses_an_event_that_would_replace_a_schedule(at_server, event, stream, stored, subject, with_js, way):
    with_js(lambda js: configure_stream(js, stream, allow_msg_schedules=True, allow_atomic=True))
    later = ["--at", "2099-01-01T00:00:00Z", "--target", f"{subject}.to"]
    result = at_server("pub", way, subject, *later, stdin=event(1) + event(2) + event(3))
    text = f"{subject}: it would replace an earlier event; a template such as timers.{{id}} has one for each"
    assert result.exit_code == 1
    assert result.stderr.count(f": {text}\n") == 2
    assert [dict(message.headers)["ce-id"] for message in stored(stream)] == ([] if way == "--atomic" else ["1"])


def test_pub_stores_large_data_in_a_bucket(at_server, event, stream, stored, subject, with_js):
    async def create(js):
        await js.create_object_store(stream, storage="memory")

    async def content(js, name):
        return (await (await js.object_store(stream)).get(name)).data

    with_js(create)
    large = event(1, data="a" * 2_000_000)
    arguments = ["pub", "-J", subject, "--claim-check"]
    assert at_server(*arguments, stream, large).exit_code == 0
    ((message),) = stored(stream)
    name = dict(message.headers)["ce-dataref"].removeprefix(f"nats-obj:{stream}/")
    assert (message.data, with_js(content, name)) == (b"", b'"%s"' % (2_000_000 * b"a"))
    result = at_server(*arguments, "NONE", large)
    assert (result.exit_code, "there is no bucket NONE" in result.stderr) == (3, True)
    assert at_server("pub", "--claim-check", stream, subject, large).exit_code == 2


@pytest.fixture
def batches(stream, with_js):
    """A stream that allows atomic batches."""
    with_js(lambda js: configure_stream(js, stream, allow_atomic=True))
    return stream


def test_pub_of_an_atomic_batch(at_server, event, batches, stored, subject):
    result = at_server("pub", "--atomic", f"{subject}.{{id}}", "-H", "Tag: a", "--json", stdin=event(1) + event(2))
    assert (result.exit_code, json.loads(result.stdout)["published"]) == (0, 2)
    messages = stored(batches)
    assert [message.subject for message in messages] == [f"{subject}.1", f"{subject}.2"]
    assert len({dict(message.headers)["Nats-Batch-Id"] for message in messages}) == 1
    result = at_server("pub", "--atomic", "-J", subject, "--json", stdin=event(3) + event(2))
    assert (result.exit_code, json.loads(result.stdout)["refused_by_stream"]) == (3, 2)
    assert "event at position 1 on" in result.stderr
    assert len(stored(batches)) == 2


def test_pub_sends_no_batch_with_an_invalid_event(at_server, event, batches, stored, subject):
    result = at_server("pub", "--atomic", subject, stdin=event(1) + event(2, time="now") + event(3) + event(1))
    assert result.exit_code == 1
    first, second, last = result.stderr.splitlines()
    assert first.startswith("ce-nats: invalid-timestamp: line 2: ")
    assert second.startswith("ce-nats: invalid-batch: line 4: ")
    assert last == "0 published"
    result = at_server("pub", "--atomic", subject, stdin="".join(map(event, range(1_001))))
    assert (result.exit_code, "must have at most 1000 events" in result.stderr) == (1, True)
    assert at_server("pub", "--atomic", subject, stdin="").stderr == "0 published\n"
    assert at_server("pub", "--atomic", "--reply", "r", subject, event()).exit_code == 2
    assert stored(batches) == []


def test_pub_of_a_batch_to_a_stream_without_the_setting(at_server, event, stream, stored, subject):
    result = at_server("pub", "--atomic", subject, event())
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith(f"ce-nats: incompatible-config: stream {stream} must allow atomic batches")
    assert stored(stream) == []


def test_pub_skips_invalid_events(at_server, event, stream, stored, subject):
    result = at_server("pub", "-J", subject, stdin=event(1) + event(2, time="now") + event(3))
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0].startswith("ce-nats: invalid-timestamp: line 2: ")
    assert [dict(message.headers)["ce-id"] for message in stored(stream)] == ["1", "3"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["pub", "-J", "no.stream"], "no-responders"),
        (["pub", "a", "--server", "nats://name:secret@127.0.0.1:1"], "connection-failed"),
        (["top", "a", "--server", "nats://name:secret@127.0.0.1:1"], "connection-failed"),
    ],
)
def test_errors_of_nats_are_status_3(at_server, event, arguments, code):
    result = at_server(*arguments, *([event()] if arguments[0] == "pub" else []))
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.splitlines()[-1].startswith(f"ce-nats: {code}: ")
    assert "secret" not in result.stderr


def test_pub_to_a_stream_with_fast_ingest(at_server, event, with_js, stream, stored, subject):
    """The summary does not claim that there are no duplicates if that is unknown."""
    with_js(lambda js: configure_stream(js, stream, allow_batched=True))
    lines = "".join(map(event, range(100)))
    for duplicates in (None, 100):
        counts = json.loads(at_server("pub", "-J", subject, "--json", stdin=lines).stdout)
        assert (counts["published"], counts["duplicates"]) == (100, duplicates)
        assert counts["batched"] > 50
    assert at_server("pub", "-J", subject, stdin=lines).stderr == "100 published, 100 of them already stored\n"
    summary = at_server("pub", "-J", subject, stdin="".join(map(event, range(200)))).stderr
    assert re.fullmatch(
        r"200 published; unknown how many of them were already stored, because \d+ were sent in batches\n", summary
    )
    assert len(stored(stream)) == 200
