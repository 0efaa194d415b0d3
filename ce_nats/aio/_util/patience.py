"""
Retry requests without a response.

A cluster does not respond to requests about a stream, a consumer or JetStream while it elects a leader, for seconds
after a server was lost. Reads of streams and requests to JetStream's API use these time limits.
"""

from __future__ import annotations

import time
from typing import Final

from .pausing import pause

# Seconds to repeat a request without a response; also the default of a Publisher.
RETRY_SECONDS: Final = 30.0
# The first attempts wait at most this long for a response: a request that arrives while there is no leader never gets
# one. After the time that an election takes, each attempt waits twice as long as the previous one: the server may only
# be slow.
_REQUEST_SECONDS: Final = 2.0
_SHORT_ATTEMPTS: Final = 4
_MIN_PAUSE_SECONDS: Final = 0.1
_MAX_PAUSE_SECONDS: Final = 0.5
_MAX_DOUBLINGS: Final = 10


class Patience:
    """Time limits for the attempts of a request, or of an operation with several requests."""

    def __init__(self, timeout: float, retry_timeout: float = RETRY_SECONDS) -> None:
        self._timeout = timeout
        self._retry_timeout = retry_timeout
        self._failures = 0
        self._give_up = 0.0

    @property
    def seconds(self) -> float:
        """Seconds to wait for a response in the next attempt."""
        if not self._retry_timeout:
            return self._timeout
        doublings = min(max(0, self._failures + 1 - _SHORT_ATTEMPTS), _MAX_DOUBLINGS)
        seconds = min(self._timeout, _REQUEST_SECONDS * 2.0**doublings)
        return min(seconds, max(self._give_up - time.monotonic(), _MIN_PAUSE_SECONDS)) if self._failures else seconds

    async def wait(self) -> bool:
        """Wait after a failed attempt; return False if there is no time for another attempt."""
        self._failures += 1
        if self._failures == 1:
            self._give_up = time.monotonic() + self._retry_timeout
        seconds = min(_MAX_PAUSE_SECONDS, _MIN_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, _MAX_DOUBLINGS))
        if time.monotonic() + seconds >= self._give_up:
            return False
        await pause(seconds)
        return True

    def reset(self) -> None:
        """Reset the time limits after progress."""
        self._failures = 0
