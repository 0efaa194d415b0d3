"""
Plugin for pytest: skips tests that need a later nats-server than the one beside this Python.

Each entry has the version, the start of the node ids of tests, and the feature. An entry without a test is an error.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

_PUBLISHING: Final = "tests/aio/publishing/test_"

NEEDS: Final = (
    ((2, 11), f"{_PUBLISHING}prepare.py::test_expirytime_is_the_time_to_live", "TTLs of messages"),
    ((2, 11), f"{_PUBLISHING}prepare.py::test_stream_deletes_an_event_when_it_expires", "TTLs of messages"),
    ((2, 11), f"{_PUBLISHING}prepare.py::test_far_expiry_is_kept_by_the_server", "TTLs of messages"),
    ((2, 11), f"{_PUBLISHING}prepare.py::test_expired_event_is_not_published", "TTLs of messages"),
    ((2, 11), f"{_PUBLISHING}prepare.py::test_stream_without_ttl_refuses", "TTLs of messages"),
    ((2, 11), f"{_PUBLISHING}prepare.py::test_custom_time_to_live_is_checked", "TTLs of messages"),
    ((2, 11), f"{_PUBLISHING}publisher.py::test_events_that_a_busy_server_refuses_are_resent", "max_buffered_msgs"),
    ((2, 12), f"{_PUBLISHING}atomic.py", "atomic batches"),
    ((2, 12), f"{_PUBLISHING}replay.py::test_messages_of_an_atomic_batch_are_replayed_one_by_one", "atomic batches"),
    ((2, 12), "tests/aio/test_jetstream.py::test_configured_setting_is_changed_and_others_are_kept", "atomic batches"),
    ((2, 12), "tests/aio/test_jetstream.py::test_refused_setting_is_an_error", "refusal of unknown settings"),
    ((2, 14), "tests/aio/consumer/test_dead_letters.py::test_requeued_original_has_its_sequence", "fast ingest"),
    ((2, 14), f"{_PUBLISHING}fast_ingest.py", "fast ingest"),
    ((2, 14), f"{_PUBLISHING}prepare.py::test_messages_of_a_batch_have_a_time_to_live", "fast ingest"),
    ((2, 14), f"{_PUBLISHING}publisher.py::test_large_events_wait_for_the_network", "fast ingest"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    text = subprocess.check_output([Path(sys.executable).with_name("nats-server"), "--version"], text=True)
    found = re.search(r"v(\d+)\.(\d+)", text)
    assert found, text
    version = (int(found[1]), int(found[2]))
    for needed, test, feature in NEEDS:
        matching = [item for item in items if item.nodeid.startswith(test)]
        if not matching:
            raise pytest.UsageError(f"no test begins with {test}")
        if version < needed:
            reason = f"{feature}: nats-server {needed[0]}.{needed[1]} or later"
            for item in matching:
                item.add_marker(pytest.mark.skip(reason=reason))
