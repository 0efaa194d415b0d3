"""Fixtures of tests on a broker: a nats-server, and events for it."""

from collections.abc import Callable, Iterator

import pytest
from cloudevents.core.v1.event import CloudEvent

from ce_nats.testing import NatsServer


@pytest.fixture(scope="session")
def server() -> Iterator[NatsServer]:
    with NatsServer(jetstream=True) as server:
        yield server


@pytest.fixture
def make_event() -> Callable[..., CloudEvent]:
    def make(number: int = 1, data: object = None, **attributes: object) -> CloudEvent:
        known = {"specversion": "1.0", "id": f"event {number}", "source": "/tests", "type": "com.example.test"}
        event = CloudEvent({**known, **attributes}, data)
        del event._attributes["time"]  # the package's own invention
        return event

    return make
