"""Statuses with which a server answers pull requests, and ends them."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class PullStatus(Enum):
    """Meaning of a status for a pull request."""

    HEARTBEAT = auto()
    # All requested messages are being sent. If replicas store the position of the consumer first, the status overtakes
    # the messages.
    COMPLETED = auto()
    NO_MESSAGES = auto()  # none, or no more of them until the request expired
    TOO_LARGE = auto()  # the next message is larger than the rest of ``max_bytes``
    DELETED = auto()
    REFUSED = auto()  # a push consumer, or a request that the limits of the consumer do not allow
    NO_RESPONDERS = auto()  # the consumer does not exist, or the server is still starting
    INTERRUPTED = auto()  # a new leader, or the server shuts down


_BY_CODE: Final = {
    "100": PullStatus.HEARTBEAT,
    "404": PullStatus.NO_MESSAGES,
    "408": PullStatus.NO_MESSAGES,
    "503": PullStatus.NO_RESPONDERS,
}
# Beginnings of descriptions, in lower case: "Exceeded MaxRequestBatch of 10" for instance.
_BY_DESCRIPTION: Final = {
    "batch completed": PullStatus.COMPLETED,
    "message size exceeds maxbytes": PullStatus.TOO_LARGE,
    "consumer deleted": PullStatus.DELETED,
    "consumer is push": PullStatus.REFUSED,
    "exceeded maxrequest": PullStatus.REFUSED,
    "bad request": PullStatus.REFUSED,
}


def parse_pull_status(code: str, description: str) -> PullStatus:
    """Return the meaning of a status."""
    text = description.lower()
    for start, status in _BY_DESCRIPTION.items():
        if text.startswith(start):
            return status
    return _BY_CODE.get(code, PullStatus.INTERRUPTED)
