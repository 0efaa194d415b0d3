"""The rules of ``check()``, without servers: a good configuration has no findings, and each problem has one."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from ce_nats._ranges import StreamState
from ce_nats.aio._jetstream_api import Progress
from ce_nats.aio.check_up import _rules as rules
from ce_nats.aio.check_up._rules import Consumer, Level, Needs, Servers, Stream

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
SECOND = 10**9
SERVERS = Servers(version=(2, 15, 1), is_cluster=True, max_payload=1_048_576)
STATE = StreamState("ORDERS", "", 1, 1000, 1000, size=100_000)
CONFIG = {
    "name": "ORDERS",
    "subjects": ["orders.>"],
    "retention": "limits",
    "storage": "file",
    "discard": "old",
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msg_size": -1,
    "num_replicas": 3,
    "duplicate_window": 120 * SECOND,
}
REPLICAS = [{"name": "b", "current": True}, {"name": "c", "current": True}]
STREAM = Stream(CONFIG, STATE, {"leader": "a", "replicas": REPLICAS}, 1)
LETTERS = Stream({**CONFIG, "subjects": ["dead.>"]}, replace(STATE, name="DEAD"), {}, 0)
READS = {"ack_policy": "explicit", "ack_wait": 30 * SECOND, "max_deliver": -1, "max_ack_pending": 1000}
CONSUMER = Consumer("billing", Progress(1000, 1000, ack_floor=990, ack_pending=10, config=READS))
ORIGINS = ["orders.>"]


def changed(stream, **settings):
    return stream._replace(config={**stream.config, **settings})


def reading(**settings):
    return CONSUMER._replace(progress=changed(CONSUMER.progress, **settings))


def at(**progress):
    return CONSUMER._replace(progress=CONSUMER.progress._replace(**progress))


def codes(findings):
    return [(finding.level.value, finding.code) for finding in findings]


def test_good_configuration_has_no_findings():
    needs = Needs(replicas=3, read_every=3600, features=())
    assert codes(rules.stream_findings(STREAM, needs, SERVERS)) == []
    assert codes(rules.consumer_findings(STREAM, ORIGINS, CONSUMER, needs, NOW)) == []
    assert codes(rules.dead_letter_findings(STREAM, CONSUMER, "dead.orders", LETTERS, SERVERS)) == []


def test_one_replica_is_good_without_a_cluster():
    alone = changed(STREAM, num_replicas=1)._replace(cluster={"leader": "a"})
    assert codes(rules.stream_findings(alone, Needs(), replace(SERVERS, is_cluster=False))) == []


@pytest.mark.parametrize(
    ("stream", "needs", "expected"),
    [
        (changed(STREAM, sealed=True), Needs(), ("error", "sealed")),
        (changed(STREAM, no_ack=True), Needs(), ("error", "no-ack")),
        (changed(STREAM, discard="new", max_msgs=1000), Needs(), ("error", "full")),
        (changed(STREAM, discard="new", max_bytes=110_000), Needs(), ("error", "full")),
        (changed(STREAM, retention="interest")._replace(consumers=0), Needs(), ("error", "no-interest")),
        (changed(STREAM, storage="memory"), Needs(), ("warning", "memory-storage")),
        (changed(STREAM, storage="memory"), Needs(replicas=3), ("error", "memory-storage")),
        (changed(STREAM, persist_mode="async"), Needs(), ("warning", "async-persistence")),
        (changed(STREAM, num_replicas=1), Needs(), ("warning", "one-replica")),
        (changed(STREAM, num_replicas=1), Needs(replicas=3), ("error", "replicas")),
        (changed(STREAM, num_replicas=2), Needs(), ("warning", "even-replicas")),
        (changed(STREAM, duplicate_window=30 * SECOND), Needs(), ("warning", "duplicate-window")),
        (changed(STREAM, max_age=60 * SECOND), Needs(read_every=3600), ("error", "max-age")),
        (changed(STREAM, retention="workqueue"), Needs(read_every=3600), ("error", "retention")),
        (STREAM, Needs(features=("atomic",)), ("error", "atomic")),
        (STREAM, Needs(features=("batches",)), ("error", "batches")),
        (STREAM, Needs(features=("schedules",)), ("error", "schedules")),
        (STREAM, Needs(features=("ttl",)), ("error", "ttl")),
        (
            changed(STREAM, retention="interest", allow_msg_schedules=True),
            Needs(features=("schedules",)),
            ("warning", "schedule-interest"),
        ),
        (STREAM, Needs(sync=True), ("unknown", "sync")),
        (
            STREAM._replace(cluster={"leader": "a", "replicas": [REPLICAS[0], {"name": "c", "current": False}]}),
            Needs(),
            ("warning", "replica-not-current"),
        ),
    ],
)
def test_each_problem_of_a_stream_has_one_finding(stream, needs, expected):
    assert codes(rules.stream_findings(stream, needs, SERVERS)) == [expected]


def test_features_that_the_stream_has_are_good():
    settings = {feature.setting: True for feature in rules.FEATURES.values()}
    needs = Needs(features=tuple(rules.FEATURES))
    assert codes(rules.stream_findings(changed(STREAM, **settings), needs, SERVERS)) == []
    older = replace(SERVERS, version=(2, 12, 0))
    found = list(rules.stream_findings(changed(STREAM, **settings), needs, older))
    assert codes(found) == [("error", "atomic"), ("error", "batches")]
    assert found[0].text == "allow_atomic needs nats-server 2.12.1 or later, got 2.12.0"


@pytest.mark.parametrize(
    ("synced", "sync", "expected"),
    [
        ({"a": True, "b": True, "c": True}, True, []),
        ({"a": True, "b": True}, True, [("unknown", "sync")]),
        ({"a": True, "b": False, "c": True}, True, [("error", "not-synced")]),
        ({"a": False}, True, [("error", "not-synced"), ("unknown", "sync")]),
        ({"a": False}, False, [("warning", "not-synced")]),
        ({"d": False}, False, []),
    ],
)
def test_all_servers_of_the_stream_must_sync(synced, sync, expected):
    servers = replace(SERVERS, synced=synced, was_asked=True)
    assert codes(rules.stream_findings(STREAM, Needs(sync=sync), servers)) == expected


@pytest.mark.parametrize(
    ("consumer", "expected"),
    [
        (reading(deliver_subject="push"), ("error", "push-consumer")),
        (reading(ack_policy="none"), ("error", "ack-policy")),
        (reading(ack_policy="all"), ("error", "ack-policy")),
        (reading(filter_subject="order.>"), ("error", "filter")),
        (reading(filter_subjects=["a", "b.>"]), ("error", "filter")),
        (reading(headers_only=True), ("warning", "headers-only")),
        (reading(inactive_threshold=60 * SECOND), ("warning", "inactive-threshold")),
        (reading(mem_storage=True), ("warning", "position")),
        (reading(num_replicas=1), ("warning", "position")),
        (reading(max_deliver=5), ("warning", "max-deliver")),
        (reading(ack_wait=SECOND), ("warning", "ack-wait")),
        (reading(backoff=[SECOND, 60 * SECOND]), ("warning", "ack-wait")),
        (reading(max_ack_pending=20), ("warning", "max-ack-pending")),
        (at(ack_pending=1000), ("warning", "in-flight-full")),
        (reading(pause_until="2026-01-01T00:00:01Z"), ("warning", "paused")),
    ],
)
def test_each_problem_of_a_consumer_has_one_finding(consumer, expected):
    assert codes(rules.consumer_findings(STREAM, ORIGINS, consumer, Needs(), NOW)) == [expected]


@pytest.mark.parametrize(
    "consumer",
    [
        reading(filter_subjects=["a", "orders.paid"]),
        reading(filter_subject="*.paid"),
        reading(num_replicas=0),
        reading(max_ack_pending=-1),
        reading(backoff=[30 * SECOND]),
        reading(pause_until="2025-12-31T23:59:59Z"),
        reading(pause_until="never"),
    ],
)
def test_good_consumers_have_no_findings(consumer):
    assert codes(rules.consumer_findings(STREAM, ORIGINS, consumer, Needs(), NOW)) == []


@pytest.mark.parametrize(
    ("ack_floor", "settings", "expected"),
    [
        (0, {"max_msgs": 1000}, [("warning", "unread")]),
        (90, {"max_bytes": 105_000}, [("warning", "unread")]),
        (500, {"max_msgs": 1000}, []),
        (0, {"max_msgs": 5000}, []),
        (0, {"max_msgs": 1000, "discard": "new"}, []),
        (1000, {"max_msgs": 1000}, []),
    ],
)
def test_messages_that_are_removed_before_they_are_handled(ack_floor, settings, expected):
    consumer = at(ack_floor=ack_floor)
    assert codes(rules.consumer_findings(changed(STREAM, **settings), ORIGINS, consumer, Needs(), NOW)) == expected


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        (None, ("error", "dead-letter-unstored")),
        (STREAM, ("warning", "dead-letter-stream")),
        (changed(LETTERS, storage="memory"), ("warning", "memory-storage")),
        (changed(LETTERS, num_replicas=1), ("warning", "dead-letter-replicas")),
        (changed(LETTERS, max_age=3600 * SECOND), ("warning", "dead-letter-age")),
        (changed(LETTERS, deny_delete=True), ("warning", "deny-delete")),
        (changed(LETTERS, max_msg_size=1024), ("warning", "dead-letter-size")),
        (changed(LETTERS, sealed=True), ("error", "sealed")),
        (changed(LETTERS, retention="interest"), ("error", "no-interest")),
    ],
)
def test_each_problem_of_dead_letters_has_one_finding(letters, expected):
    consumer = reading(filter_subject="orders.>")
    assert codes(rules.dead_letter_findings(STREAM, consumer, "dead.orders", letters, SERVERS)) == [expected]


def test_dead_letters_that_the_consumer_reads_are_an_error():
    assert codes(rules.dead_letter_findings(STREAM, CONSUMER, "orders.dead", STREAM, SERVERS)) == [
        ("error", "dead-letter-stream")
    ]


@pytest.mark.parametrize(
    ("permissions", "denied"),
    [
        ({}, []),
        ({"publish": {"allow": [">"]}}, []),
        ({"publish": {"allow": ["a", "b.*"]}, "subscribe": {"allow": ["_INBOX.> queue"]}}, []),
        ({"publish": {"allow": ["a", "b.c"]}}, ["publish to b.*"]),
        ({"publish": {"deny": ["b.c"]}}, ["publish to b.*"]),
        ({"subscribe": {"allow": ["_INBOX.x"]}}, ["subscribe to _INBOX.>"]),
        (
            {"publish": {"allow": ["c"]}, "subscribe": {"deny": [">"]}},
            ["publish to a", "publish to b.*", "subscribe to _INBOX.>"],
        ),
    ],
)
def test_denied_permissions(permissions, denied):
    found = list(rules.permission_findings(permissions, {"a": "x", "b.*": "y"}, {"_INBOX.>": "z"}, "ada"))
    assert [finding.text.removeprefix("it lacks permission to ").partition(",")[0] for finding in found] == denied
    assert all((finding.level, finding.target) == (Level.ERROR, "user ada") for finding in found)
