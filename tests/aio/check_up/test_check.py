"""``check()`` at a real server."""

from datetime import timedelta

import nats
import pytest
from nats.js.api import ConsumerConfig

from ce_nats import DeliveryError, EncodeError
from ce_nats.aio.jetstream import Level, check, configure_consumer, configure_stream
from ce_nats.testing import NatsServer
from tests.support.streaming import free_port
from tests.support.waiting import until

PORT = free_port()
CONFIG = f"""
http: "127.0.0.1:{PORT}"
jetstream {{ sync_interval: SYNC }}
system_account: SYS
accounts {{
  SYS: {{ users: [{{user: system, password: x}}] }}
  APP: {{
    jetstream: enabled
    users: [
      {{user: app, password: x}}
      {{user: limited, password: x, permissions: {{
        publish: ["$JS.API.>", "$SYS.REQ.USER.INFO", "$JS.ACK.ORDERS.other.>"]
        subscribe: ["_INBOX.>"]
      }}}}
    ]
  }}
}}
"""
NANO = 10**9
ORDERS = {"name": "ORDERS", "subjects": ["orders.>"]}
DEAD = {"name": "DEAD", "subjects": ["dead.>"]}


def found(findings):
    return [(finding.level.value, finding.code) for finding in findings]


@pytest.fixture(scope="module")
def guarded():
    """A server with accounts, a system account, and monitoring."""
    with NatsServer(jetstream=True, config=CONFIG.replace("SYNC", "always")) as server:
        yield server


@pytest.fixture
async def connect(guarded):
    """Yield a function that connects a user."""
    connections = []

    async def as_user(user):
        connections.append(await nats.connect(guarded.url, user=user, password="x"))
        return connections[-1]

    yield as_user
    for connection in connections:
        await connection.close()


@pytest.fixture
async def app(connect):
    """JetStream of a user with all permissions, and streams for orders and their dead letters."""
    js = (await connect("app")).jetstream()
    await js.add_stream(**ORDERS)
    await js.add_stream(**DEAD)
    await js.add_consumer("ORDERS", ConsumerConfig(durable_name="billing"))
    yield js
    for stream in await js.streams_info():
        await js.delete_stream(stream.config.name)


async def look(js, **options):
    return found(await check(js, "ORDERS", consumer="billing", dead_letter="dead.orders", **options))


async def test_good_configuration_has_no_findings(app):
    await configure_stream(app, "ORDERS", allow_msg_ttl=True)
    options = {"replicas": 1, "sync": True, "features": ["ttl"], "read_every": timedelta(hours=1)}
    assert await look(app, **options, monitor=[f"http://127.0.0.1:{PORT}/"]) == []


PLANTED = [
    ({"num_replicas": 1}, {}, {"replicas": 3}, [("error", "replicas")]),
    ({"no_ack": True}, {}, {}, [("error", "no-ack")]),
    ({"sealed": True}, {}, {}, [("error", "sealed")]),
    ({"duplicate_window": NANO}, {}, {}, [("warning", "duplicate-window")]),
    ({"max_age": 200 * NANO}, {}, {"read_every": timedelta(hours=1)}, [("error", "max-age")]),
    ({}, {}, {"features": ["atomic"]}, [("error", "atomic")]),
    ({}, {}, {"features": ["batches", "schedules"]}, [("error", "batches"), ("error", "schedules")]),
    ({"subjects": ["others.>"]}, {"filter_subject": "orders.>"}, {}, [("error", "filter")]),
    ({}, {"headers_only": True}, {}, [("warning", "headers-only")]),
    ({}, {"inactive_threshold": 60 * NANO}, {}, [("warning", "inactive-threshold")]),
    ({}, {"max_deliver": 5}, {}, [("warning", "max-deliver")]),
    ({}, {"ack_wait": NANO}, {}, [("warning", "ack-wait")]),
    ({}, {"backoff": [NANO, 2 * NANO]}, {}, [("warning", "ack-wait")]),
    ({}, {"max_ack_pending": 10}, {}, [("warning", "max-ack-pending")]),
    ({}, {}, {"in_flight": 5000}, [("warning", "max-ack-pending")]),
    ({}, {}, {"sync": True}, [("unknown", "sync")]),
]


@pytest.mark.parametrize(("stream", "consumer", "options", "expected"), PLANTED, ids=lambda value: str(value)[:40])
async def test_planted_problem_is_found(app, stream, consumer, options, expected):
    if consumer:
        await configure_consumer(app, "ORDERS", "billing", **consumer)
    if stream:
        await configure_stream(app, "ORDERS", **stream)
    assert await look(app, **options) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"retention": "workqueue"}, [("error", "retention")]),
        ({"storage": "memory"}, [("warning", "memory-storage")]),
        ({"persist_mode": "async"}, [("warning", "async-persistence")]),
        ({"subjects": ["orders.>", "dead.>"]}, [("error", "dead-letter-stream")]),
    ],
)
async def test_planted_problem_of_another_stream_is_found(app, config, expected):
    """Settings that cannot be changed."""
    for name in ("ORDERS", "DEAD"):
        await app.delete_stream(name)
    await app.add_stream(**{**ORDERS, **config})
    if "dead.>" not in config.get("subjects", ()):
        await app.add_stream(**DEAD)
    await app.add_consumer("ORDERS", ConsumerConfig(durable_name="billing"))
    assert await look(app, read_every=timedelta(hours=1)) == expected


@pytest.mark.parametrize(
    ("consumer", "expected"),
    [
        (ConsumerConfig(durable_name="other", deliver_subject="push"), [("error", "push-consumer")]),
        (ConsumerConfig(durable_name="other", ack_policy="none"), [("error", "ack-policy")]),
        (ConsumerConfig(durable_name="other", mem_storage=True), [("warning", "position")]),
        (None, [("error", "no-consumer")]),
    ],
)
async def test_planted_problem_of_another_consumer_is_found(app, consumer, expected):
    if consumer is not None:
        await app.add_consumer("ORDERS", consumer)
    assert found(await check(app, "ORDERS", consumer="other")) == expected


async def test_interest_without_a_consumer_is_found(app):
    await app.add_stream(name="IGNORED", subjects=["ignored"], retention="interest")
    assert found(await check(app, "IGNORED")) == [("error", "no-interest")]


async def test_full_stream_is_found(app):
    await configure_stream(app, "ORDERS", max_msgs=3, discard="new")
    for _ in range(3):
        await app.publish("orders.paid", b"")
    assert await look(app) == [("error", "full")]
    await configure_stream(app, "ORDERS", discard="old")
    assert await look(app) == [("warning", "unread")]


async def test_missing_stream_of_dead_letters_is_found(app):
    findings = await check(app, "ORDERS", consumer="billing", dead_letter="nowhere.orders")
    assert found(findings) == [("error", "dead-letter-unstored")]
    assert findings[0].remedy == "js.add_stream(name='DEAD_ORDERS', subjects=['nowhere.orders'])"


async def test_remedies_solve_the_problems(app):
    """Those that are commands."""
    settings = {"max_deliver": 5, "max_ack_pending": 10, "ack_wait": NANO, "inactive_threshold": 60 * NANO}
    await configure_consumer(app, "ORDERS", "billing", **settings)
    await configure_stream(app, "ORDERS", no_ack=True, duplicate_window=NANO)
    findings = await check(app, "ORDERS", consumer="billing", features=["atomic", "ttl"])
    assert len(findings) == 8
    for finding in findings:
        *options, setting = finding.remedy.removeprefix("ce-nats configure ORDERS ").split()
        name, value = setting.split("=")
        setting = {name: {"true": True, "false": False}.get(value) if value.isalpha() else int(value)}
        if options:
            assert options == ["--consumer", "billing"]
            await configure_consumer(app, "ORDERS", "billing", **setting)
        else:
            await configure_stream(app, "ORDERS", **setting)
    assert await check(app, "ORDERS", consumer="billing", features=["atomic", "ttl"]) == []


async def test_paused_consumer_is_found(app, connect):
    nc = await connect("app")
    await nc.request("$JS.API.CONSUMER.PAUSE.ORDERS.billing", b'{"pause_until":"2099-01-01T00:00:00Z"}')
    (finding,) = await check(app, "ORDERS", consumer="billing")
    assert finding.code == "paused"
    await nc.request(finding.remedy.split("'")[1])
    assert await check(app, "ORDERS", consumer="billing") == []


async def test_replicas_of_a_cluster(cluster, subject):
    name = subject.replace(".", "_")
    async with await nats.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=30)
        await js.add_stream(name=name, subjects=[subject], num_replicas=1)
        for replicas, expected in ((1, "one-replica"), (2, "even-replicas"), (3, None)):
            await configure_stream(js, name, num_replicas=replicas)

            async def has_replicas(wanted=expected):
                codes = {finding.code for finding in await check(js, name)} - {"replica-not-current"}
                return codes == ({wanted} if wanted else set())

            await until(has_replicas)
        assert await until(lambda: nothing(js, name))
        await js.delete_stream(name)


async def nothing(js, name):
    return not await check(js, name)


async def test_missing_permissions_are_found(app, connect):
    limited = (await connect("limited")).jetstream()
    findings = await check(limited, "ORDERS", consumer="billing", dead_letter="dead.orders")
    assert [(finding.code, finding.target) for finding in findings] == [("permission", "user limited")] * 2
    assert "$JS.ACK.ORDERS.billing.>" in findings[0].text
    assert "dead.orders" in findings[1].text


async def test_system_user_knows_whether_servers_sync(app, connect):
    assert await check(app, "ORDERS", sync=True, system=await connect("system")) == []
    with pytest.raises(DeliveryError, match="a user of the system account") as caught:
        await check(app, "ORDERS", sync=True, system=await connect("app"))
    assert caught.value.code == "permission-denied"


async def test_server_that_does_not_sync_is_found():
    port = free_port()
    config = f'http: "127.0.0.1:{port}"'
    with NatsServer(jetstream=True, config=config) as server:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        await js.add_stream(**ORDERS)
        url = f"http://127.0.0.1:{port}"
        assert found(await check(js, "ORDERS", monitor=[url])) == [("warning", "not-synced")]
        assert found(await check(js, "ORDERS", monitor=[url], sync=True)) == [("error", "not-synced")]
        with pytest.raises(DeliveryError) as caught:
            await check(js, "ORDERS", monitor=[server.url.replace("nats://", "http://")])
        assert caught.value.code == "connection-failed"
        await nc.close()


async def test_invalid_arguments(js, stream):
    for options in (
        {"replicas": 0},
        {"in_flight": 0},
        {"features": ["speed"]},
        {"monitor": ["nats://127.0.0.1"]},
        {"retry_timeout": -1},
        {"read_every": timedelta(-1)},
    ):
        with pytest.raises(ValueError, match="must"):
            await check(js, stream, **options)
    with pytest.raises(EncodeError):
        await check(js, stream, dead_letter="a.*")
    with pytest.raises(DeliveryError) as caught:
        await check(js, "NOWHERE")
    assert caught.value.code == "stream-not-found"


def test_levels_are_ordered():
    assert list(Level) == [Level.ERROR, Level.WARNING, Level.UNKNOWN]
