"""Report the lag of a consumer to its instrumentation, at intervals."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ...errors import DeliveryError
from .._observer import Observer
from .._util.supervising import supervise
from ._binding import Binding

_log: Final = logging.getLogger(__name__)

# Seconds between two reports: the server sends a response of some hundred bytes for each.
_SECONDS: Final = 15.0


class LagReporter:
    """Requests the lag of a consumer from the server, as long as the consumer is open."""

    def __init__(self, binding: Binding, observer: Observer) -> None:
        self._binding = binding
        self._observer = observer
        # It is only for information, so its failure, which is logged, does not end the consumer.
        self._task = supervise(self._keep_reporting(), binding.target, lambda _: None)

    async def _keep_reporting(self) -> None:
        api, stream, name = self._binding.api.without_retries(), self._binding.stream, self._binding.name
        while True:
            try:
                self._observer.lag(stream, name, await api.lag(stream, name))
            except DeliveryError as error:  # the consumer itself reports it, if it matters
                _log.debug("%s: %s", self._binding.target, error)
            await asyncio.sleep(_SECONDS)

    async def close(self) -> None:
        """Report no longer."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._observer.lag(self._binding.stream, self._binding.name, None)
