"""
Questions about streams from ordinary code, over one connection that is kept while there are questions.

Planning a query asks a few; a streaming query asks again at every trigger, which may be a hundred times a second or
once a day.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...errors import DeliveryError, ErrorCode
from ...ranges import StreamState
from .connection import Connection

if TYPE_CHECKING:
    from ...aio.streams import StreamApi

__all__ = ["Streams"]

T = TypeVar("T")

# Nobody answers the server's PINGs between two questions, and it closes a connection that leaves two unanswered. It
# sends one every two minutes, by default.
_BEARS_SILENCE: Final = 60.0
_RETRY_SECONDS: Final = 0.2


class Streams:
    """
    Asks streams. Travels pickled, without its connection.

    A connection that breaks is made again, for as long as ``retryTimeout`` says. A server that was never reached, or
    where nobody answers the first question, is an error at once.

    Args:
        connection: How to connect.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._session: _Session | None = None
        self._was_reached = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Streams, (self.connection,)

    def states(self, names: Sequence[str]) -> dict[str, StreamState]:
        """
        States of streams.

        Raises:
            DeliveryError: ``stream-not-found``, or no answer.
        """

        async def ask(api: StreamApi) -> list[StreamState]:
            return await asyncio.gather(*map(api.state, names))

        return dict(zip(names, self._ask(ask)))

    def next_sequence(self, stream: str, sequence: int, subjects: Sequence[str]) -> int | None:
        """As ``ce_nats.aio.streams.StreamApi.next_sequence``."""
        return self._ask(lambda api: api.next_sequence(stream, sequence, subjects))

    def sequence_at(self, state: StreamState, since: int) -> int:
        """As ``ce_nats.aio.streams.StreamApi.sequence_at``."""
        return self._ask(lambda api: api.sequence_at(state, since))

    def close(self) -> None:
        """Close the connection; the next question makes a new one."""
        if self._session is not None:
            self._session.close()
        self._session = None

    def _ask(self, question: Callable[[StreamApi], Awaitable[T]]) -> T:
        from ...aio.streams import is_final

        end = time.monotonic() + self.connection.retry_timeout
        while True:
            if self._session is not None and self._session.silence > _BEARS_SILENCE:
                self.close()
            try:
                if self._session is None:
                    self._session = _Session(self.connection)
                answer = self._session.ask(question)
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
    """One connection, on an event loop of its own."""

    def __init__(self, connection: Connection) -> None:
        from nats.aio.client import Client

        from ...aio.blocking import Blocking
        from ...aio.streams import StreamApi

        self._blocking = Blocking()
        self._client = Client()
        self._lost = asyncio.Event()
        self._api = StreamApi(self._client, connection.api_prefix, connection.request_timeout)
        self._last_used = time.monotonic()
        try:
            self._blocking.run(connection.connect(self._client, closed_cb=self._closed))
        except BaseException:
            self.close()
            raise

    @property
    def silence(self) -> float:
        """Seconds since the last answer."""
        return time.monotonic() - self._last_used

    @property
    def is_lost(self) -> bool:
        """Whether the connection, which there was, is no more."""
        return self._client.is_closed

    def ask(self, question: Callable[[StreamApi], Awaitable[T]]) -> T:
        answer = self._blocking.run(self._answer(question))
        self._last_used = time.monotonic()
        return answer

    def close(self) -> None:
        from ...aio.connect import disconnect

        try:
            self._blocking.run(disconnect(self._client))
        finally:
            self._blocking.close()

    async def _closed(self) -> None:
        self._lost.set()

    async def _answer(self, question: Callable[[StreamApi], Awaitable[T]]) -> T:
        # nats-py lets a request wait for its timeout where the connection is lost under it.
        answer = asyncio.ensure_future(question(self._api))
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait((answer, lost), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise DeliveryError(ErrorCode.CONNECTION_CLOSED, f"the connection was closed: {self._client.last_error}")
        finally:
            answer.cancel()
            lost.cancel()
