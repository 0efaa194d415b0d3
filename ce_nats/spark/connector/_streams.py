"""
Requests about streams from synchronous code, over one connection that is reused.

Planning a query takes a few requests; a streaming query makes some at every trigger, which may be a hundred times per
second or once per day.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..._ranges import StreamRange, StreamState
from ...errors import DeliveryError, ErrorCode
from ._connection import Connection

if TYPE_CHECKING:
    from ...aio._jetstream_api import StreamApi

T = TypeVar("T")

# The event loop does not run between two requests, so the server's PINGs are not answered, and the server closes a
# connection after two unanswered ones. By default it sends one every two minutes.
_MAX_IDLE_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 0.2
# Maximum number of requests in flight.
_MAX_REQUESTS: Final = 64


class Streams:
    """
    Requests about streams. Can be pickled; the copy makes a separate connection.

    A lost connection is established again, and an unanswered request is retried, for ``retry_timeout`` seconds. If the
    server was never reached, the first failure is an error.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._session: _Session | None = None
        self._was_reached = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Streams, (self.connection,)

    def states(self, names: Sequence[str], optional: Container[str] = ()) -> dict[str, StreamState]:
        """
        Return the states of streams, by name.

        Raises:
            DeliveryError: ``stream-not-found``, or the server did not answer.
        """

        async def state(api: StreamApi, name: str) -> StreamState | None:
            try:
                return await api.state(name)
            except DeliveryError as error:
                if error.code is ErrorCode.STREAM_NOT_FOUND and name in optional:
                    return None
                raise

        async def request(api: StreamApi) -> list[StreamState | None]:
            found: list[StreamState | None] = []
            for start in range(0, len(names), _MAX_REQUESTS):
                found += await asyncio.gather(*(state(api, name) for name in names[start : start + _MAX_REQUESTS]))
            return found

        return {name: state for name, state in zip(names, self._request(request)) if state is not None}

    def names(self) -> list[str]:
        """As ``ce_nats.aio._jetstream_api.StreamApi.stream_names``."""
        try:
            return self._request(lambda api: api.stream_names())
        except DeliveryError as error:
            if error.code is not ErrorCode.PERMISSION_DENIED:
                raise
            raise DeliveryError(error.code, f"{error.message}, which the option streamPattern needs") from error

    def next_sequence(self, stream: str, sequence: int, subjects: Sequence[str]) -> int | None:
        """As ``ce_nats.aio._jetstream_api.StreamApi.next_sequence``."""
        return self._request(lambda api: api.next_sequence(stream, sequence, subjects))

    def sequence_at(self, state: StreamState, since: int) -> int:
        """As ``ce_nats.aio._jetstream_api.StreamApi.sequence_at``."""
        return self._request(lambda api: api.sequence_at(state, since))

    def fitting(self, wanted: StreamRange, size: int) -> tuple[int, int]:
        """As :func:`ce_nats.aio.reading._sizes.fitting`."""
        from ...aio.reading._sizes import fitting

        return self._request(lambda api: fitting(api, wanted, size, self.connection.request_timeout))

    def close(self) -> None:
        """Close the connection; the next request establishes a new one."""
        if self._session is not None:
            self._session.close()
        self._session = None

    def _request(self, request: Callable[[StreamApi], Awaitable[T]]) -> T:
        from ...aio._jetstream_api import is_final

        end = time.monotonic() + self.connection.retry_timeout
        while True:
            if self._session is not None and self._session.idle_seconds > _MAX_IDLE_SECONDS:
                self.close()
            try:
                if self._session is None:
                    self._session = _Session(self.connection)
                answer = self._session.run(request)
            except DeliveryError as error:
                if is_final(error):
                    raise
                self._was_reached |= self._session is not None and self._session.is_lost
                self.close()
                if not self._was_reached or time.monotonic() > end:
                    raise
                time.sleep(_RETRY_SECONDS)
            else:
                self._was_reached = True
                return answer


class _Session:
    """One connection, with a separate event loop."""

    def __init__(self, connection: Connection) -> None:
        from nats.aio.client import Client

        from ...aio._jetstream_api import StreamApi
        from ._blocking import Blocking

        self._blocking = Blocking()
        self._client = Client()
        self._lost = asyncio.Event()
        timeouts = connection.request_timeout, connection.retry_timeout
        self._api = StreamApi(self._client, connection.api_prefix, *timeouts)
        self._last_used = time.monotonic()
        try:
            self._blocking.run(connection.connect(self._client, closed_cb=self._closed))
        except BaseException:
            self.close()
            raise

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last response."""
        return time.monotonic() - self._last_used

    @property
    def is_lost(self) -> bool:
        """Whether the connection was lost after it had been established."""
        return self._client.is_closed

    def run(self, request: Callable[[StreamApi], Awaitable[T]]) -> T:
        answer = self._blocking.run(self._answer(request))
        self._last_used = time.monotonic()
        return answer

    def close(self) -> None:
        from ...aio._connect import disconnect

        try:
            self._blocking.run(disconnect(self._client))
        finally:
            self._blocking.close()

    async def _closed(self) -> None:
        self._lost.set()

    async def _answer(self, request: Callable[[StreamApi], Awaitable[T]]) -> T:
        # If the connection is lost during a request, nats-py raises the error only after the request's timeout.
        answer = asyncio.ensure_future(request(self._api))
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait((answer, lost), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise DeliveryError(ErrorCode.CONNECTION_CLOSED, f"the connection was closed: {self._client.last_error}")
        finally:
            answer.cancel()
            lost.cancel()
