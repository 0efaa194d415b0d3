import asyncio
import json
import re
import signal
from base64 import b64decode

import pytest
from nats.js.api import ConsumerConfig

from ce_nats.aio import PullConsumer, Reject
from ce_nats.redelivery import DeadLetter, Reason
from tests.support.reading import publish_all, until_stored

SUMMARY = r"([0-9]+) dead letters? requeued; ([0-9]+) sent without a result\n"


@pytest.fixture
def dead(with_js, stream, subject):
    """Yield the name of an empty stream for dead letters of at most 1,000 bytes."""
    name = f"dead_{stream}"
    with_js(lambda js: js.add_stream(name=name, subjects=[f"dead.{subject}"], max_msg_size=1000, storage="memory"))
    yield name
    with_js(lambda js: js.delete_stream(name))


@pytest.fixture
def fill(with_js, dead, subject):
    """Return a function that stores (reason, error, original subject, original stream) as dead letters."""

    def fill(letters):
        messages = []
        for number, (reason, error, original, name) in enumerate(letters, 1):
            letter = DeadLetter(Reason(reason), error, "", original, name, "billing", number, 1)
            messages.append((f"dead.{subject}", b"%d" % number, dict(letter.headers())))
        with_js(publish_all, messages)

    return fill


@pytest.fixture
def dead_letters(with_js, dead, stream, subject, at_server, event):
    """Return a stream with an undecodable and a rejected dead letter, and a message that is not a dead letter."""

    async def fill(js):
        await js.publish(subject, b"not an event \xff", headers={"Nats-Msg-Id": "theirs", "Tag": "a"})
        config = ConsumerConfig(ack_wait=30)
        async with PullConsumer(js, stream, "billing", dead_letter=f"dead.{subject}", create=config) as consumer:
            running = asyncio.create_task(consumer.run(reject))
            await until_stored(js, dead, 2)
            consumer.stop()
            await running
        await js.publish(f"dead.{subject}", b"something else")

    async def reject(_):
        raise Reject("no such customer")

    assert at_server("pub", "-J", subject, event(data={"total": 1})).exit_code == 0
    with_js(fill)
    return dead


def listed(at_server, name):
    return [json.loads(line) for line in at_server("dead-letters", "list", name, "--json").stdout.splitlines()]


def test_list_prints_dead_letters_and_other_messages(at_server, dead_letters, stream, subject, monkeypatch):
    found = {item.get("dead_letter", {}).get("reason"): item for item in listed(at_server, dead_letters)}
    assert set(found) == {"rejected", "undecodable", None}
    assert found["rejected"]["dead_letter"]["text"] == "no such customer"
    assert (found["undecodable"]["subject"], found["undecodable"]["dead_letter"]["stream"]) == (subject, stream)
    assert found["undecodable"]["dead_letter"]["error"] == "not-a-cloudevent"
    assert found[None]["error"]["code"] == "missing-attribute"
    assert found["rejected"]["event"] == {"id": "1", "source": "/tests", "type": "t", "time": None}
    assert set(found["undecodable"]["event"].values()) == {None}
    monkeypatch.setenv("COLUMNS", "200")
    wide = at_server("dead-letters", "list", dead_letters).stdout
    assert "/tests" in wide
    monkeypatch.setenv("COLUMNS", "139")
    table = at_server("dead-letters", "list", dead_letters)
    assert "/tests" not in table.stdout
    assert (table.exit_code, len(table.stdout.splitlines()) >= 4, "undecodable" in table.stdout) == (0, True, True)


def test_long_values_are_wrapped(at_server, dead_letters, subject, monkeypatch):
    """In a pipe of unknown width they are on one line, so that grep finds them."""
    monkeypatch.setenv("COLUMNS", "80")
    narrow = at_server("dead-letters", "list", dead_letters).stdout
    assert "…" not in narrow
    assert max(map(len, narrow.splitlines())) <= 80
    assert subject not in narrow
    monkeypatch.delenv("COLUMNS")
    assert f"  {subject}  " in at_server("dead-letters", "list", dead_letters).stdout


def test_show_prints_dead_letter_and_original(at_server, cli, dead_letters, event):
    number = {item.get("dead_letter", {}).get("reason"): item["sequence"] for item in listed(at_server, dead_letters)}
    text = at_server("dead-letters", "show", dead_letters, number["rejected"]).stdout
    assert "rejected by billing, deliveries: 1\n" in text
    assert "no such customer" in text
    assert "binary: there are headers" in text
    bad = json.loads(at_server("dead-letters", "show", dead_letters, number["undecodable"], "--json").stdout)
    assert b64decode(bad["data_base64"]) == b"not an event \xff"
    assert ["Tag", "a"] in bad["headers"]
    shown = at_server("dead-letters", "show", dead_letters, number["rejected"], "--json").stdout
    assert json.loads(cli("decode", stdin=shown).stdout)["data"] == {"total": 1}
    assert at_server("dead-letters", "show", dead_letters, number[None]).exit_code == 1
    missing = at_server("dead-letters", "show", dead_letters, 99)
    assert (missing.exit_code, missing.stderr.split(": ")[1]) == (3, "message-not-found")


def test_show_and_list_have_all_reasons_of_a_dead_letter(at_server, with_js, dead_letters, subject):
    """That was dead-lettered again, by another consumer."""
    again = DeadLetter(Reason.EXHAUSTED, "KeyError", "k", f"dead.{subject}", dead_letters, "mailer", 1, 8)
    letter = DeadLetter(Reason.REJECTED, "Reject", "no", subject, "S", "billing", 5, 1, later=(again,))

    async def fill(js):
        await js.publish(f"dead.{subject}", b"x", headers=dict(letter.headers()))

    with_js(fill)
    text = at_server("dead-letters", "show", dead_letters, 4).stdout
    assert "rejected by billing, deliveries: 1\n" in text
    assert f"exhausted by mailer, deliveries: 8\nKeyError: k\nmessage 1 of {dead_letters} on dead.{subject}\n" in text
    (found,) = [
        json.loads(line)
        for line in at_server("dead-letters", "list", dead_letters, "--error", "KeyError", "--json").stdout.splitlines()
    ]
    assert found["sequence"] == 4
    assert [(one["reason"], one["consumer"]) for one in found["dead_letter"]["later"]] == [("exhausted", "mailer")]


def test_requeue_stores_originals_despite_their_message_ids(at_server, dead_letters, stream, stored):
    """Although their Nats-Msg-Ids are within the duplicate window of the stream."""
    before = stored(stream)
    result = at_server("dead-letters", "requeue", dead_letters, "--all", "--json")
    assert result.exit_code == 1  # one message is not a dead letter
    assert "missing-attribute" in result.stderr
    assert [json.loads(line)["deleted"] for line in result.stdout.splitlines()] == [True, True]
    (remaining,) = listed(at_server, dead_letters)
    assert "error" in remaining
    after = stored(stream)
    assert len(after) == len(before) + 2
    originals = {message.data: message for message in before}
    for copy in after[-2:]:
        original = originals[copy.data]
        assert copy.subject == original.subject
        assert without_msg_id(copy) == without_msg_id(original)


def without_msg_id(message):
    return [pair for pair in message.headers if pair[0] != "Nats-Msg-Id"]


def test_requeue_twice_stores_once(at_server, dead_letters, stream, stored):
    first = listed(at_server, dead_letters)[0]["sequence"]
    before = len(stored(stream))
    for _ in range(2):
        assert at_server("dead-letters", "requeue", dead_letters, first, "--keep").exit_code == 0
    assert len(stored(stream)) == before + 1
    assert len(listed(at_server, dead_letters)) == 3


def test_requeue_requires_a_stream(at_server):
    assert at_server("dead-letters", "requeue", "NONE", "--all").exit_code == 3


def test_requeue_shows_progress_on_a_terminal(at_terminal, dead, fill, subject, stream, stored):
    fill([("rejected", "", subject, stream)] * 300)
    status, output, drawn = at_terminal("dead-letters", "requeue", dead, "--all")
    expected = [f"dead letter {n} is now message {n} of stream {stream}" for n in range(1, 301)]
    assert (status, output.decode().splitlines()) == (0, expected)
    assert "requeue" in drawn
    assert "300/300" in drawn
    assert [message.data for message in stored(stream)] == [b"%d" % number for number in range(1, 301)]
    assert stored(dead) == []


def test_interrupted_requeue_prints_its_count_and_loses_no_message(
    start, at_server, dead, fill, subject, stream, stored
):
    fill([("rejected", "", subject, stream)] * 3000)
    process = start("dead-letters", "requeue", dead, "--all")
    lines = [process.stdout.readline()]
    process.send_signal(signal.SIGINT)
    lines += process.stdout.readlines()
    assert process.wait(30) == 128 + signal.SIGINT
    summary = process.stderr.read().decode()
    requeued, unconfirmed = map(int, re.fullmatch(SUMMARY, summary).groups())
    assert requeued == len(lines) <= len(stored(stream)) <= requeued + unconfirmed
    remaining = {message.data for message in stored(dead)}
    assert remaining
    originals = {b"%d" % number for number in range(1, 3001)}
    assert remaining | {message.data for message in stored(stream)} == originals
    assert at_server("dead-letters", "requeue", dead, "--all").exit_code == 0
    assert len(stored(stream)) == 3000


def test_forged_dead_letter_cannot_purge_a_stream(at_server, with_js, stream, subject, stored, dead, fill):
    """Nor publish to a stream other than the one it names."""
    with_js(lambda js: js.publish(subject, b"1"))
    purge = f"$JS.API.STREAM.PURGE.{stream}"
    origins = [(purge, stream), (purge, "NONE"), (f"dead.{subject}", stream), (subject, stream)]
    fill(("rejected", "", *origin) for origin in origins)
    result = at_server("dead-letters", "requeue", dead, "--all", "--allow", ">")
    assert result.stderr.count("forbidden-subject") == 2
    rest = at_server("dead-letters", "requeue", dead, "--all")
    assert rest.exit_code == 1
    assert rest.stderr.count("forbidden-subject") == 2
    assert stored(stream)[0].data == b"1"


def test_requeue_publishes_to_allowed_subjects(at_server, stream, subject, stored, dead, fill):
    fill([("rejected", "", f"{subject}.a", "GONE"), ("rejected", "", f"{subject}.b", "GONE")])
    assert "stream-not-found" in at_server("dead-letters", "requeue", dead, "--all").stderr
    result = at_server("dead-letters", "requeue", dead, "--all", "--allow", f"{subject}.a")
    assert result.exit_code == 1
    assert f"got '{subject}.b'" in result.stderr
    assert [message.subject for message in stored(stream)] == [f"{subject}.a"]
    assert [letter.sequence for letter in stored(dead)] == [2]


# --- Selection, discard, and originals that did not fit ---------------------------------------------------------------


@pytest.fixture
def various(with_js, dead, fill, stream, subject):
    """Return a stream with five dead letters of various reasons and errors, and a message that is not a dead letter."""
    kinds = [("undecodable", "invalid-json"), ("rejected", "Reject"), ("exhausted", "KeyError")]
    fill((*kind, subject, stream) for kind in [*kinds, kinds[2], ("undecodable", "invalid-utf8")])
    with_js(lambda js: js.publish(f"dead.{subject}", b"6"))
    return dead


@pytest.mark.parametrize(
    ("options", "sequences"),
    [
        ([], [1, 2, 3, 4, 5, 6]),
        (["--reason", "undecodable"], [1, 5]),
        (["--error", "KeyError"], [3, 4]),
        (["--reason", "exhausted", "--error", "KeyError", "--limit", 1], [3]),
        (["--reason", "rejected", "--error", "KeyError"], []),
        (["--limit", 2], [1, 2]),
        (["--error", ""], []),
    ],
)
def test_list_filters(at_server, various, options, sequences):
    result = at_server("dead-letters", "list", various, "--json", *options)
    assert [json.loads(line)["sequence"] for line in result.stdout.splitlines()] == sequences
    assert (result.exit_code, result.stderr) == (0, "")


def test_requeue_by_error_and_reason(at_server, various, stream, stored):
    result = at_server("dead-letters", "requeue", various, "--error", "KeyError")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [message.data for message in stored(stream)] == [b"3", b"4"]
    assert at_server("dead-letters", "requeue", various, "--reason", "rejected").exit_code == 0
    assert [message.data for message in stored(stream)] == [b"3", b"4", b"2"]
    assert [message.sequence for message in stored(various)] == [1, 5, 6]


@pytest.mark.parametrize("command", ["requeue", "discard"])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "must be selected: by sequences, --reason, --error, --filter, or with --all"),
        ([1, "--all"], "exclude each other, got sequences and --all"),
        ([1, "--error", "KeyError"], "exclude each other, got sequences and --error"),
        (["--all", "--reason", "rejected"], "exclude each other, got --all and --reason"),
        (["--all", "--reason", "rejected", "--error", "a"], "exclude each other, got --all and --reason and --error"),
    ],
    ids=str,
)
def test_exactly_one_kind_of_selection_is_required(at_server, various, stored, command, options, text):
    result = at_server("dead-letters", command, various, *options)
    assert (result.exit_code, text in result.stderr.replace("\n", " ")) == (2, True), result.stderr
    assert len(stored(various)) == 6


def test_discard_deletes_only_dead_letters(at_server, various, stream, stored):
    """Other messages are kept, and nothing is published."""
    result = at_server("dead-letters", "discard", various, 1, 6, 99)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (3, "1 dead letter discarded")
    assert ["missing-attribute" in result.stderr, "message-not-found" in result.stderr] == [True, True]
    assert [message.sequence for message in stored(various)] == [2, 3, 4, 5, 6]
    by_error = at_server("dead-letters", "discard", various, "--error", "KeyError", "--json")
    assert (by_error.exit_code, by_error.stdout) == (0, '{"discarded":2}\n')
    assert at_server("dead-letters", "discard", various, "--all").exit_code == 1
    assert [message.sequence for message in stored(various)] == [6]
    assert stored(stream) == []


@pytest.fixture
def oversized(with_js, dead, stream, subject):
    """Return a stream whose dead letter 1 refers to message 1 of ``stream``, which is an event."""

    async def fill(js):
        headers = {"ce-specversion": "1.0", "ce-id": "big", "ce-source": "/s", "ce-type": "t", "Content-Type": "a/b"}
        await js.publish(subject, b"x" * 1000, headers=headers)
        config = ConsumerConfig(ack_wait=30)
        async with PullConsumer(js, stream, "billing", dead_letter=f"dead.{subject}", create=config) as consumer:
            async for delivery in consumer:
                await delivery.reject("too big")
                break

    with_js(fill)
    return dead


def test_show_reads_an_original_that_did_not_fit(at_server, cli, with_js, oversized, stream):
    shown = at_server("dead-letters", "show", oversized, 1)
    assert shown.exit_code == 0
    assert "not copied, because it did not fit" in shown.stdout
    assert "payload: 1000 bytes" in shown.stdout
    line = at_server("dead-letters", "show", oversized, 1, "--json").stdout
    assert json.loads(cli("decode", stdin=line).stdout)["id"] == "big"
    found = json.loads(line)["dead_letter"]
    assert (found["is_complete"], found["is_copied"], found["time"] is None) == (False, False, False)
    with_js(lambda js: js.delete_msg(stream, 1))
    gone = at_server("dead-letters", "show", oversized, 1)
    assert (gone.exit_code, "message-not-found" in gone.stderr, "too big" in gone.stdout) == (3, True, True)
    assert "payload" not in gone.stdout
    assert at_server("dead-letters", "requeue", oversized, 1).exit_code == 3


def test_requeue_reads_an_original_that_did_not_fit(at_server, oversized, stream, stored):
    assert at_server("dead-letters", "requeue", oversized, "--all").exit_code == 0
    original, copy = stored(stream)
    assert (copy.data, without_msg_id(copy)) == (original.data, original.headers)
    assert stored(oversized) == []


def test_filter_selects_by_the_event(at_server, dead_letters, with_js, stream, subject):
    """Of the original; what is not an event, or not a dead letter, does not pass."""

    def sequences(*arguments):
        lines = at_server("dead-letters", "list", dead_letters, "--json", *arguments).stdout.splitlines()
        return [json.loads(line)["sequence"] for line in lines]

    (event,) = sequences("--filter", "EXISTS id")
    assert event in sequences() == [1, 2, 3]
    assert sequences("--filter", "id = 'other'") == []
    assert sequences("--filter", "EXISTS id", "--reason", "undecodable") == []
    result = at_server("dead-letters", "requeue", dead_letters, "--filter", "EXISTS id", "--json")
    assert json.loads(result.stdout)["sequence"] == event
    assert at_server("dead-letters", "discard", dead_letters, "--filter", "EXISTS id").exit_code == 0
    assert len(sequences()) == 2
