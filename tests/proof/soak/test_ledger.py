"""Each fault is found in each place: a check that cannot fail would prove nothing."""

import json
import os
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from benchmarks.processes import sessions
from ce_nats import ContentMode, to_nats_message
from tests.proof.soak import events, journal, picture, results
from tests.proof.soak.events import Kind
from tests.proof.soak.ledger import FAULTS, Begun, Done, begun_too_early, compare, reordered, table
from tests.proof.soak.processes import usage
from tests.proof.soak.sampling import Life, Sample, slope

EXPECTED = {1: 11, 2: 22, 3: 33}
COMPLETE = list(EXPECTED.items())


@pytest.mark.parametrize(
    ("found", "faults"),
    [
        (COMPLETE, {}),
        (COMPLETE[::-1], {}),
        (COMPLETE[1:], {"lost": [1]}),
        ([*COMPLETE, (2, 22)], {"twice": [2]}),
        ([*COMPLETE, (4, 44)], {"invented": [4]}),
        ([(1, 11), (2, 20), (3, 33)], {"changed": [2]}),
        ([(1, 11), (1, 11), (2, 20), (4, 44)], {"lost": [3], "twice": [1], "invented": [4], "changed": [2]}),
        ([], {"lost": [1, 2, 3]}),
    ],
)
def test_each_fault_is_found(found, faults):
    place = compare("here", EXPECTED, found, promised=FAULTS)
    assert {fault: keys for fault, keys in place.faults.items() if keys} == faults
    assert [text.split()[2].strip(",") for text in place.broken] == list(faults)
    assert (place.expected, place.found) == (3, len(dict(found)))


def test_only_promises_can_be_broken():
    place = compare("here", EXPECTED, [*COMPLETE, (1, 11)], promised=("lost",))
    assert place.broken == []
    assert table([place])[1] == [["here", 3, 3, 0, "(1)", "(0)", "(0)", ""]]


def test_reordered_messages_are_found_within_their_group():
    assert reordered([("a", 1), ("b", 9), ("a", 2), ("b", 10)]) == []
    assert reordered([("a", 1), ("a", 3), ("a", 2), ("a", 4)]) == ["a 2"]
    assert reordered([("a", 1), ("a", 2), ("a", 1)]) == []  # twice is another fault


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([Begun(1, 0), Done(1), Begun(3, 0), Done(3)], []),
        ([Begun(1, 0), Begun(2, 0), Done(2), Done(1), Begun(3, 0)], []),  # 2 has another key
        ([Begun(1, 0), Begun(3, 0), Done(1)], [3]),
        ([Begun(3, 0), Done(3), Begun(1, 0), Done(1)], [3]),
        ([Begun(1, 0), Done(1), Begun(3, 0), Done(3), Begun(1, 0), Begun(3, 0)], []),  # at least once
        ([Begun(1, 0), Done(1), Begun(3, 0), Done(3), Begun(5, 9)], [5]),  # before 4 is dead-lettered
        ([Begun(1, 0), Done(1), Begun(3, 0), Done(3), Begun(5, 10)], []),
    ],
)
def test_handlers_that_are_called_too_early_are_found(steps, found):
    keys = {1: "a", 2: "b", 3: "a", 4: "a", 5: "a"}
    assert begun_too_early(keys, steps, {4: 10}) == found


def test_each_kind_is_sent_and_each_message_is_its_own():
    plans = [events.plan(7, "fast", number) for number in range(1, 3000)]
    assert {plan.kind for plan in plans} == set(Kind)
    assert len({plan.digest() for plan in plans}) == len(plans)
    assert max(len(plan.data["text"]) for plan in plans) > 10_000
    assert events.plan(7, "fast", 12) == plans[11]
    assert events.plan(8, "fast", 12).digest() != plans[11].digest()


@pytest.mark.parametrize("mode", ContentMode)
@pytest.mark.parametrize("number", [1, 1000])  # a whole second
def test_decoded_event_has_the_digest_of_the_plan(mode, number):
    plan = next(it for it in (events.plan(3, name, number) for name in "abcdef") if it.kind is not Kind.MALFORMED)
    message = to_nats_message(plan.event(), plan.subject, mode=mode)
    assert events.decoded(message.headers, message.data) == (plan.id, plan.digest())
    changed = to_nats_message(replace(plan, key="other").event(), plan.subject, mode=mode)
    assert events.decoded(changed.headers, changed.data) != (plan.id, plan.digest())


def test_malformed_message_has_the_digest_of_the_plan():
    plan = next(it for it in (events.plan(3, "fast", n) for n in range(1, 999)) if it.kind is Kind.MALFORMED)
    headers = {"Content-Type": "application/cloudevents+json"}
    assert events.decoded(headers, plan.malformed()) == (plan.id, plan.digest())
    assert events.decoded(headers, plan.malformed() + b" ")[1] != plan.digest()


def test_journal_is_read_as_written(tmp_path):
    path = tmp_path / "a.journal"
    assert journal.sent_and_acknowledged(path) == (0, [])
    for lines in ([("sent", 3), ("acknowledged", 2)], [("sent", 5)]):
        restarted = journal.Journal(path)
        for line in lines:
            restarted.write(*line)
    assert journal.sent_and_acknowledged(path) == (5, [2])


def test_only_committed_files_of_spark_are_read(tmp_path):
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    for name, files in {"8": "ab", "9.compact": "abc", "10": "d", "11": "e", ".12.tmp": "f"}.items():
        entries = [json.dumps({"path": f"file:///elsewhere/{file}.parquet", "action": "add"}) for file in files]
        (log / name).write_text("\n".join(["v1", *entries]))
    assert [path.stem for path in results.committed_files(tmp_path)] == list("abcde")


def test_growth_is_of_the_longest_life():
    grown = [Sample(second, 1, 1000 + second, 5) for second in range(0, 200, 5)]
    short = [Sample(200 + second, 2, 9000, 7) for second in range(0, 50, 5)]
    life = Life.of([*grown, *short])
    assert (life.count, life.seconds, life.highest, life.last, life.descriptors) == (2, 195, 9000, 1195, 7)
    assert life.growth == pytest.approx(3600)
    assert life.descriptor_growth == 0
    assert Life.of(short).growth is None


def test_slope():
    assert slope([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2)
    assert slope([(0, 1)]) == 0


def test_picture_has_a_chart_for_each_role():
    samples = {name: [Sample(second, 1, 10**6 * second, 9) for second in range(1, 900)] for name in ("a", "b & c")}
    tree = ElementTree.fromstring(picture.draw(samples, "note"))
    lines = [line.get("points").split() for line in tree.iter("{http://www.w3.org/2000/svg}polyline")]
    assert len(lines) == 4
    assert all(len(line) <= 300 for line in lines)
    assert "b & c" in [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]


def test_own_process_is_measured():
    assert os.getpid() in sessions()[os.getsid(0)]
    used = usage([os.getpid()])
    assert used.memory > 10**6
    assert used.descriptors >= 3
