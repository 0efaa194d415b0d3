"""
Headers by which a message instructs a server, and messages that a server has written itself.

Instructions concern the first publish. With them a copy would delete other messages, for example, or be refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

# By the begin of their names.
INSTRUCTIONS: Final[Mapping[str, str]] = {
    "Nats-Rollup": "The stream deletes all earlier messages, or those on the same subject.",
    "Nats-Expected-": "The stream refuses the message unless its name, or its last message, is the expected one.",
    "Nats-TTL": "The stream deletes the message after a time; a stream without `allow_msg_ttl` refuses it.",
    "Nats-Schedule": "The stream publishes the message again, at certain times.",
    "Nats-Incr": "The stream adds a number to a counter.",
    "Nats-Counter-Sources": "Parts of a counter; written by the server.",
    "Nats-Batch-": "The stream stores the message when its atomic batch is complete.",
    "Nats-Trace-": "Servers report the path of the message, and may not deliver it.",
    "Nats-Required-Api-Level": "An earlier server refuses the message.",
    "Nats-Stream-Source": "Origin of a message that a stream has copied; refused from clients.",
}
# Of a message that the server writes when the last one on a subject has expired, or was deleted.
MARKER: Final = "Nats-Marker-Reason"
# Never copied: a stream would wait for the rest of the batch.
_BATCH: Final = ("Nats-Batch-",)
_ALL: Final = tuple(INSTRUCTIONS)


def left_out(*, keep_instructions: bool) -> tuple[str, ...]:
    """Return the begins of the names of headers that copies do not have."""
    return _BATCH if keep_instructions else _ALL


def copied_headers(headers: Sequence[tuple[str, str]], *, keep_instructions: bool = False) -> list[tuple[str, str]]:
    """Return the headers of a message that its copies have."""
    begins = left_out(keep_instructions=keep_instructions)
    return [pair for pair in headers if not pair[0].startswith(begins)]


def is_marker(headers: Sequence[tuple[str, str]]) -> bool:
    """Return whether a server has written the message."""
    return any(name == MARKER for name, _ in headers)
