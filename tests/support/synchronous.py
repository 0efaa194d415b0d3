"""Helpers for tests of ``ce_nats.sync``."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

from ce_nats import from_nats_message

SECONDS = 60  # for events that must happen


def event_ids(*numbers: int) -> list[str]:
    return [f"event {number}" for number in numbers]


def stored_ids(js: SimpleNamespace, stream: str) -> list[str]:
    return [from_nats_message(message).get_id() for message in js.read(stream)]


def wait_for(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < give_up
        pause.wait(0.01)
