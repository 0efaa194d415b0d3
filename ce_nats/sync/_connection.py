"""Connections, and the operations that are a single call on a connection."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, PubAck

from .. import aio, cesql
from .._settings import Secret
from ..aio._claim_check import MAX_SIZE, OVER
from ..aio._connect import Callback, ErrorCallback
from ..aio._observer import OnOutcome
from ..aio._util.patience import RETRY_SECONDS
from ..aio.consumer._pull_consumer import ACK_DELAY, BACKOFF
from ..aio.core._publish import check_size, prepare
from ..aio.jetstream import DedupId, Finding, TimeToLive
from ..aio.reading._range_reader import OnLoss
from ..codec.attributes import ExtensionTypes
from ..codec.binary import Dialect
from ..codec.binding import DialectName, Mode, dedup_id
from ..codec.event import EventLike
from ..codec.formats import Format
from ..codec.mode import ContentMode
from ..codec.subject_template import SubjectTemplate
from ..errors import DeliveryError, ErrorCode
from ..extensions.tracing import TraceContext
from ..message import HeadersLike, StoredMessage
from ..redelivery import Backoff
from ..schemas import Validate
from ._atomic import AtomicBatch
from ._bridge import read_in_thread
from ._claim_check import ClaimCheck
from ._consumer import PullConsumer
from ._link import ProcessLink
from ._loop import current
from ._publisher import Publisher
from ._subscription import Subscription

_log: Final = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def connect(
    servers: str | Sequence[str] | None = None,
    *,
    context: str | None = None,
    environment: bool = False,
    user: Secret | None = None,
    password: Secret | None = None,
    token: Secret | None = None,
    user_credentials: Any = None,
    nkeys_seed: str | os.PathLike[str] | None = None,
    tls_ca_file: str | os.PathLike[str] | None = None,
    tls_cert_file: str | os.PathLike[str] | None = None,
    tls_key_file: str | os.PathLike[str] | None = None,
    tls_key_password: str | None = None,
    tls_hostname: str | None = None,
    tls_handshake_first: bool = False,
    name: str | None = None,
    inbox_prefix: str | None = None,
    connect_timeout: float = 5.0,
    max_reconnect_attempts: int | None = 60,
    error_cb: ErrorCallback | None = None,
    disconnected_cb: Callback | None = None,
    reconnected_cb: Callback | None = None,
    closed_cb: Callback | None = None,
    **options: Any,
) -> Connection:
    """
    Connect to a server.

        with sync.connect("tls://nats.example.com", user_credentials="app.creds") as nc:
            nc.publish(event, "orders.paid")

    Args:
        servers: As for :func:`ce_nats.aio.connect`, and so are the other arguments. Callbacks are asynchronous
            functions here as well, and are called in the loop's thread.

    Raises:
        EncodeError: As :func:`ce_nats.aio.connect` does.
        DeliveryError: As :func:`ce_nats.aio.connect` does.
        TypeError: As :func:`ce_nats.aio.connect` does.
    """

    def open_client() -> Awaitable[Client]:
        return aio.connect(
            servers,
            context=context,
            environment=environment,
            user=user,
            password=password,
            token=token,
            user_credentials=user_credentials,
            nkeys_seed=nkeys_seed,
            tls_ca_file=tls_ca_file,
            tls_cert_file=tls_cert_file,
            tls_key_file=tls_key_file,
            tls_key_password=tls_key_password,
            tls_hostname=tls_hostname,
            tls_handshake_first=tls_handshake_first,
            name=name,
            inbox_prefix=inbox_prefix,
            connect_timeout=connect_timeout,
            max_reconnect_attempts=max_reconnect_attempts,
            error_cb=error_cb,
            disconnected_cb=disconnected_cb,
            reconnected_cb=reconnected_cb,
            closed_cb=closed_cb,
            **options,
        )

    return Connection(open_client)


class Connection:
    """
    A connection; returned by :func:`connect`. Several threads may use it at once.

    As a context manager it is closed at the end of the block. In a forked process, its first use there opens a separate
    connection with the same options.
    """

    def __init__(self, open_client: Callable[[], Awaitable[Client]]) -> None:
        self._open_client = open_client
        self._is_closed = False
        self._last_link = ProcessLink.open(current(), open_client)

    @property
    def _link(self) -> ProcessLink:
        """The link of this process."""
        loop = current()
        if self._last_link.loop is not loop:
            if self._is_closed:
                raise DeliveryError(ErrorCode.CONNECTION_CLOSED, "the connection is closed")
            with loop.lock:
                if self._last_link.loop is not loop:
                    self._last_link = ProcessLink.open(loop, self._open_client)
        return self._last_link

    @property
    def client(self) -> Client:
        """The connection of nats-py. It belongs to the loop, so :meth:`run` calls its asynchronous functions."""
        return self._link.client

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """
        Call an asynchronous function in the loop, and wait for its result.

            nc.run(nc.client.jetstream().add_stream, name="ORDERS", subjects=["orders.>"])

        Events that were published before are sent first. If the wait is interrupted, by Ctrl-C for instance, the
        function is cancelled.

        Args:
            function: A function of :attr:`client`, or another one that uses it.
            args: Positional arguments of the function.
            options: Keyword arguments of the function.

        Raises:
            Exception: The function has raised it.
        """
        return self._link.run(function, *args, **options)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except DeliveryError as failure:
            if error is None:
                raise
            _log.error("the connection was closed after %s: %s", type(error).__name__, failure)

    def close(self) -> None:
        """
        Send waiting events, wait until the server has received them, and close the connection; does nothing if closed
        already.

        Raises:
            DeliveryError: As :meth:`flush` does, if an event was published since the last :meth:`flush`.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._last_link.loop.belongs_to_this_process:
            self._last_link.loop.run(self._last_link._end)

    # --- Core NATS ---------------------------------------------------------------------------------------------------

    def publish(
        self,
        event: EventLike,
        subject: str | SubjectTemplate,
        *,
        mode: Mode = ContentMode.BINARY,
        format: Format | None = None,  # noqa: A002
        reply: str = "",
        headers: HeadersLike = None,
        headerless: bool = False,
        trace: TraceContext | None = None,
    ) -> None:
        """
        Publish an event, without waiting until it is sent. Core NATS does not confirm delivery; :meth:`flush` waits
        until the server has received the event, and raises if the server denied it.

        Args:
            event: As :func:`ce_nats.to_nats_message` accepts it. It is encoded in this call.
            subject: NATS subject to publish to, or a template of it.
            mode: As for :func:`ce_nats.aio.publish`, and so are the other arguments.

        Raises:
            EncodeError: As :func:`ce_nats.aio.publish` does. The event was not sent.
            DeliveryError: ``connection-closed``.
            PublishError: Earlier events could not be sent, and this one was not. Each failure is raised once.
        """
        link = self._link
        message = prepare(
            link.client,
            event,
            subject,
            mode=mode,
            format=format,
            reply=reply,
            headers=headers,
            headerless=headerless,
            trace=trace,
        )
        check_size(message, link.client.max_payload)
        link.publish(message, event)

    def flush(self) -> None:
        """
        Wait until the server has received everything that was published, and every subscription, so far.

        Raises:
            DeliveryError: As :func:`ce_nats.aio.flush` does.
            PublishError: Events could not be sent.
        """
        self._link.run(self._link.flush)

    def request(
        self,
        event: EventLike,
        subject: str | SubjectTemplate,
        *,
        mode: Mode = ContentMode.BINARY,
        format: Format | None = None,  # noqa: A002
        timeout: float = 5.0,
        headers: HeadersLike = None,
        headerless: bool = False,
        trace: TraceContext | None = None,
        dialect: DialectName = Dialect.SPEC,
        parse_data: bool = True,
        extension_types: ExtensionTypes | None = None,
    ) -> aio.Received:
        """
        Send an event, and wait for the first reply.

        Args:
            event: As :func:`ce_nats.to_nats_message` accepts it.
            subject: NATS subject to publish to, or a template of it.
            mode: As for :func:`ce_nats.aio.request`, and so are the other arguments.
            timeout: Seconds to wait for the reply.

        Raises:
            EncodeError: As :func:`ce_nats.aio.request` does.
            DeliveryError: As :func:`ce_nats.aio.request` does.
        """
        return self._link.run(
            aio.request,
            self.client,
            event,
            subject,
            mode=mode,
            format=format,
            timeout=timeout,
            headers=headers,
            headerless=headerless,
            trace=trace,
            dialect=dialect,
            parse_data=parse_data,
            extension_types=extension_types,
        )

    def respond(
        self,
        request: Msg | aio.Received,
        event: EventLike,
        *,
        mode: Mode = ContentMode.BINARY,
        format: Format | None = None,  # noqa: A002
        headers: HeadersLike = None,
        headerless: bool = False,
        correlate: bool = True,
        trace: TraceContext | None = None,
    ) -> None:
        """
        Reply to a request with an event.

        Args:
            request: The request, from a subscription of this connection.
            event: The reply.
            mode: As for :func:`ce_nats.aio.respond`, and so are the other arguments.

        Raises:
            EncodeError: As :func:`ce_nats.aio.respond` does.
            DeliveryError: As :func:`ce_nats.aio.respond` does.
        """
        self._link.run(
            aio.respond,
            request,
            event,
            mode=mode,
            format=format,
            headers=headers,
            headerless=headerless,
            correlate=correlate,
            trace=trace,
        )

    def subscribe(
        self,
        subject: str,
        *,
        timeout: float | None = None,
        queue: str = "",
        mode: Mode | None = None,
        dialect: DialectName = Dialect.SPEC,
        parse_data: bool = True,
        extension_types: ExtensionTypes | None = None,
        filter: str | cesql.Expression | None = None,
        validate: Validate | None = None,
    ) -> Subscription:
        """
        Subscribe, and receive events: all that are published after this call has returned.

            with nc.subscribe("orders.>") as messages:
                for item in messages: ...

        Args:
            subject: Subject, wildcards allowed.
            timeout: Seconds without a message after which an iteration ends. None waits forever.
            queue: As for :func:`ce_nats.aio.subscribe`, and so are the next arguments.

        Raises:
            EncodeError: As :func:`ce_nats.aio.subscribe` does.
            DeliveryError: As :func:`ce_nats.aio.subscribe` does.
        """
        return Subscription(
            self,
            subject,
            timeout=timeout,
            queue=queue,
            mode=mode,
            dialect=dialect,
            parse_data=parse_data,
            extension_types=extension_types,
            filter=filter,
            validate=validate,
        )

    # --- JetStream ---------------------------------------------------------------------------------------------------

    def publish_to_stream(
        self,
        event: EventLike,
        subject: str | SubjectTemplate,
        *,
        mode: Mode = ContentMode.BINARY,
        format: Format | None = None,  # noqa: A002
        headers: HeadersLike = None,
        dedup: DedupId | None = dedup_id,
        ttl: TimeToLive | None = None,
        timeout: float | None = None,
        headerless: bool = False,
        trace: TraceContext | None = None,
        claim_check: ClaimCheck | None = None,
        schedule: aio.Schedule | None = None,
    ) -> PubAck:
        """
        Publish an event to the stream that listens on a subject, and wait until it is stored.

        :meth:`publisher` does not wait for each event, and is many times as fast.

        Args:
            event: As :func:`ce_nats.to_nats_message` accepts it.
            subject: NATS subject to publish to, or a template of it.
            mode: As for :func:`ce_nats.aio.jetstream.publish`, and so are the other arguments.

        Returns:
            The acknowledgement: ``stream``, ``seq``, and ``duplicate``.

        Raises:
            EncodeError: As :func:`ce_nats.aio.jetstream.publish` does.
            DeliveryError: As :func:`ce_nats.aio.jetstream.publish` does.
        """
        return self._link.run(
            aio.jetstream.publish,
            self._link.js,
            event,
            subject,
            mode=mode,
            format=format,
            headers=headers,
            dedup=dedup,
            ttl=ttl,
            timeout=timeout,
            headerless=headerless,
            trace=trace,
            claim_check=None if claim_check is None else claim_check._of_this_process(),
            schedule=schedule,
        )

    def claim_check(
        self,
        bucket: str,
        *,
        over: int = OVER,
        max_size: int = MAX_SIZE,
        retry_timeout: float | None = None,
    ) -> ClaimCheck:
        """Return a :class:`ClaimCheck` on this connection."""
        return ClaimCheck(self, bucket, over=over, max_size=max_size, retry_timeout=retry_timeout)

    def publisher(
        self,
        *,
        mode: Mode = ContentMode.BINARY,
        format: Format | None = None,  # noqa: A002
        dedup: DedupId | None = dedup_id,
        ttl: TimeToLive | None = None,
        validate: Validate | None = None,
        headerless: bool = False,
        window: int = 1000,
        ack_timeout: float = 5.0,
        retry_timeout: float = 30.0,
        claim_check: ClaimCheck | None = None,
        require: aio.Durability | None = None,
        fast_ingest: bool = True,
        on_outcome: OnOutcome | None = None,
        instrumentation: aio.Instruments | None = None,
    ) -> Publisher:
        """Open a :class:`Publisher` on this connection."""
        return Publisher(
            self,
            mode=mode,
            format=format,
            dedup=dedup,
            ttl=ttl,
            validate=validate,
            headerless=headerless,
            window=window,
            ack_timeout=ack_timeout,
            retry_timeout=retry_timeout,
            claim_check=claim_check,
            require=require,
            fast_ingest=fast_ingest,
            on_outcome=on_outcome,
            instrumentation=instrumentation,
        )

    def atomic_batch(
        self,
        *,
        stream: str | None = None,
        mode: Mode = ContentMode.BINARY,
        format: Format | None = None,  # noqa: A002
        dedup: DedupId | None = dedup_id,
        ttl: TimeToLive | None = None,
        validate: Validate | None = None,
        ack_timeout: float = 5.0,
        retry_timeout: float = 30.0,
        claim_check: ClaimCheck | None = None,
        on_outcome: OnOutcome | None = None,
        instrumentation: aio.Instruments | None = None,
    ) -> AtomicBatch:
        """Create an :class:`AtomicBatch` on this connection."""
        return AtomicBatch(
            self,
            stream=stream,
            mode=mode,
            format=format,
            dedup=dedup,
            ttl=ttl,
            validate=validate,
            ack_timeout=ack_timeout,
            retry_timeout=retry_timeout,
            claim_check=claim_check,
            on_outcome=on_outcome,
            instrumentation=instrumentation,
        )

    def consumer(
        self,
        stream: str,
        consumer: str,
        *,
        dead_letter: str | None,
        timeout: float | None = None,
        check_dead_letter: bool = True,
        create: ConsumerConfig | None = None,
        max_deliveries: int = 8,
        max_unfinished: int | None = None,
        backoff: Backoff | Sequence[float] = BACKOFF,
        unavailable: Sequence[type[Exception]] = (),
        pause_after: int | None = 20,
        prefetch: int | None = None,
        double_ack: bool = False,
        ack_delay: float = ACK_DELAY,
        mode: Mode | None = None,
        dialect: DialectName = Dialect.SPEC,
        parse_data: bool = True,
        extension_types: ExtensionTypes | None = None,
        filter: str | cesql.Expression | None = None,
        validate: Validate | None = None,
        skip_expired: bool = False,
        expiry_leeway: float = 0.0,
        claim_check: ClaimCheck | None = None,
        on_error: Callable[[Exception, aio.Delivery | None], None] | None = None,
        on_outcome: OnOutcome | None = None,
        instrumentation: aio.Instruments | None = None,
    ) -> PullConsumer:
        """Open a :class:`PullConsumer` on this connection."""
        return PullConsumer(
            self,
            stream,
            consumer,
            dead_letter=dead_letter,
            timeout=timeout,
            check_dead_letter=check_dead_letter,
            create=create,
            max_deliveries=max_deliveries,
            max_unfinished=max_unfinished,
            backoff=backoff,
            unavailable=unavailable,
            pause_after=pause_after,
            prefetch=prefetch,
            double_ack=double_ack,
            ack_delay=ack_delay,
            mode=mode,
            dialect=dialect,
            parse_data=parse_data,
            extension_types=extension_types,
            filter=filter,
            validate=validate,
            skip_expired=skip_expired,
            expiry_leeway=expiry_leeway,
            claim_check=claim_check,
            on_error=on_error,
            on_outcome=on_outcome,
            instrumentation=instrumentation,
        )

    def read_stream(
        self,
        stream: str,
        *,
        subject: str | Sequence[str] = ">",
        start: int = 1,
        end: int | None = None,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        batch_size: int = 1000,
        on_loss: OnLoss | None = None,
        retry_timeout: float | None = None,
    ) -> Iterator[list[StoredMessage]]:
        """
        Read a range of a stream, in batches: see :func:`ce_nats.aio.jetstream.read_stream`.

            for batch in nc.read_stream("ORDERS"):
                for message in batch: ...

        Args:
            stream: Name of the stream.
            subject: As for :func:`ce_nats.aio.jetstream.read_stream`, and so are the other arguments. ``on_loss`` is
                called in the loop's thread.

        Raises:
            DeliveryError: As :func:`ce_nats.aio.jetstream.read_stream` does, during the iteration.
        """
        batches = aio.jetstream.read_stream(
            self._link.js,
            stream,
            subject=subject,
            start=start,
            end=end,
            start_time=start_time,
            end_time=end_time,
            batch_size=batch_size,
            on_loss=on_loss,
            retry_timeout=retry_timeout,
        )
        return self._link.iterate(batches, f"stream {stream}")

    def configure_stream(self, name: str, **settings: Any) -> dict[str, Any]:
        """
        Change settings of a stream, and keep all others: see :func:`ce_nats.aio.jetstream.configure_stream`.

        Args:
            name: Name of the stream.
            **settings: As for :func:`ce_nats.aio.jetstream.configure_stream`.

        Raises:
            DeliveryError: As :func:`ce_nats.aio.jetstream.configure_stream` does.
        """
        return self._link.run(aio.jetstream.configure_stream, self._link.js, name, **settings)

    def configure_consumer(self, stream: str, name: str, **settings: Any) -> dict[str, Any]:
        """
        Change settings of a consumer, and keep all others: see :func:`ce_nats.aio.jetstream.configure_consumer`.

        Args:
            stream: Name of the stream.
            name: Name of the consumer.
            **settings: As for :func:`ce_nats.aio.jetstream.configure_consumer`.

        Raises:
            DeliveryError: As :func:`ce_nats.aio.jetstream.configure_consumer` does.
        """
        return self._link.run(aio.jetstream.configure_consumer, self._link.js, stream, name, **settings)

    def check_stream(
        self,
        stream: str,
        *,
        consumer: str | None = None,
        dead_letter: str | None = None,
        replicas: int | None = None,
        sync: bool = False,
        features: Iterable[str] = (),
        read_every: timedelta | None = None,
        in_flight: int = 64,
        retry_timeout: float = 35.0,
        monitor: Sequence[str] = (),
        system: Connection | None = None,
    ) -> list[Finding]:
        """
        Check the configuration of a stream against what a program needs: see :func:`ce_nats.aio.jetstream.check`.

        Args:
            stream: Name of the stream.
            consumer: As for :func:`ce_nats.aio.jetstream.check`, and so are the other arguments.

        Returns:
            Findings, errors first.

        Raises:
            DeliveryError: As :func:`ce_nats.aio.jetstream.check` does.
        """
        return self._link.run(
            aio.jetstream.check,
            self._link.js,
            stream,
            consumer=consumer,
            dead_letter=dead_letter,
            replicas=replicas,
            sync=sync,
            features=features,
            read_every=read_every,
            in_flight=in_flight,
            retry_timeout=retry_timeout,
            monitor=monitor,
            system=None if system is None else system.client,
        )

    def replay(
        self,
        messages: Iterable[StoredMessage],
        *,
        acknowledged: bool = True,
        subject: str | None = None,
        allowed: Sequence[str] = (),
        new_ids: bool = False,
        keep_instructions: bool = False,
        rate: float | None = None,
        window: int = 1000,
        ack_timeout: float = 5.0,
        retry_timeout: float = 30.0,
        on_progress: Callable[[int], object] = lambda count: None,
        on_end: Callable[[aio.PublishResult], object] = lambda result: None,
    ) -> aio.PublishResult:
        """
        Publish captured messages again, in order: see :func:`ce_nats.aio.replay`.

        Args:
            messages: From :func:`ce_nats.capture.read_capture` or :meth:`read_stream`. They are read in another thread.
            acknowledged: As for :func:`ce_nats.aio.replay`, and so are the other arguments. ``on_progress`` and
                ``on_end`` are called in the loop's thread.

        Raises:
            EncodeError: As :func:`ce_nats.aio.replay` does.
            DeliveryError: As :func:`ce_nats.aio.replay` does.
        """
        return self._link.run(
            aio.replay,
            self._link.js,
            read_in_thread(messages),
            acknowledged=acknowledged,
            subject=subject,
            allowed=allowed,
            new_ids=new_ids,
            keep_instructions=keep_instructions,
            rate=rate,
            window=window,
            ack_timeout=ack_timeout,
            retry_timeout=retry_timeout,
            on_progress=on_progress,
            on_end=on_end,
        )

    def requeue(
        self,
        stored: StoredMessage,
        *,
        allowed: Sequence[str] | None = None,
        timeout: float = 5.0,
        retry_timeout: float = RETRY_SECONDS,
    ) -> PubAck:
        """
        Publish the original of a dead letter to its subject again: see :func:`ce_nats.aio.requeue`.

        Args:
            stored: The dead letter, from :meth:`read_stream`.
            allowed: As for :func:`ce_nats.aio.requeue`, and so are the other arguments.

        Raises:
            DecodeError: As :func:`ce_nats.aio.requeue` does.
            EncodeError: As :func:`ce_nats.aio.requeue` does.
            DeliveryError: As :func:`ce_nats.aio.requeue` does.
        """
        return self._link.run(
            aio.requeue, self._link.js, stored, allowed=allowed, timeout=timeout, retry_timeout=retry_timeout
        )

    def requeue_all(
        self,
        dead_letters: Iterable[StoredMessage],
        *,
        delete: bool = True,
        allowed: Sequence[str] | None = None,
        timeout: float = 5.0,
        retry_timeout: float = RETRY_SECONDS,
    ) -> Iterator[aio.RequeueResult]:
        """
        Publish the originals of many dead letters again, and delete those: see :func:`ce_nats.aio.requeue_all`.

            letters = (letter for batch in nc.read_stream("DEAD") for letter in batch)
            for result in nc.requeue_all(letters): ...

        Args:
            dead_letters: From :meth:`read_stream`. They are read in another thread.
            delete: As for :func:`ce_nats.aio.requeue_all`, and so are the other arguments.

        Raises:
            DeliveryError: As :func:`ce_nats.aio.requeue_all` does, during the iteration.
        """
        results = aio.requeue_all(
            self._link.js,
            read_in_thread(dead_letters),
            delete=delete,
            allowed=allowed,
            timeout=timeout,
            retry_timeout=retry_timeout,
        )
        return self._link.iterate(results, "dead letters")
