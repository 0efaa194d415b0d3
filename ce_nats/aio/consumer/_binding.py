"""Look up or create the consumer on the server, and notice when it is another one."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from ...errors import ApiError, DeliveryError, ErrorCode
from ...redelivery import RetryPolicy
from ...subjects import covers
from .._jetstream_api import ConsumerState, Progress, PullLimits, StreamApi, look_up
from .._util.checks import config_differences

_log: Final = logging.getLogger(__name__)

_DEFAULT_ACK_WAIT: Final = 30.0
METADATA_IMPOSSIBLE: Final = (ErrorCode.PERMISSION_DENIED, ErrorCode.INCOMPATIBLE_CONFIG, ErrorCode.REQUEST_REFUSED)
# The common form of what parse_ack_subject() accepts: deliveries, sequence, sequence in the consumer, time, pending.
_ACK_SUBJECT: Final = rb"\$JS\.ACK\.%s\.%s\.([0-9]{1,20})\.([0-9]{1,20})\.[0-9]{1,20}\.[0-9]{1,20}\.[0-9]{1,20}"


class Binding:
    """
    A durable pull consumer on the server.

    Attributes:
        target: Name for errors and the log.
        is_ack_subject: Matches the reply subjects of its messages, without a domain; the groups are numbers:
            deliveries, and the sequence in the stream.
        waits: Times until the server redelivers a message, in seconds.
        max_ack_pending: Maximum number of unacknowledged messages; infinite without a limit.
        limits: Limits of each request for messages.
        max_deliver: Number of deliveries after which the server drops a message; 0 without a limit.
    """

    def __init__(self, api: StreamApi, stream: str, name: str, create: ConsumerConfig | None) -> None:
        self.api = api
        self.stream = stream
        self.name = name
        self.target = f"consumer {name} of stream {stream}"
        self.is_ack_subject = re.compile(
            _ACK_SUBJECT % (re.escape(stream).encode(), re.escape(name).encode())
        ).fullmatch
        self.waits: list[float] = []
        self.max_ack_pending = math.inf
        self.limits = PullLimits()
        self.max_deliver = 0
        self._create = create
        self._created = ""
        self._filters: list[str] = []
        self._annotating = asyncio.Lock()

    async def open(self) -> ConsumerState:
        """Return the consumer, which is created if it does not exist and may be created."""
        state = await self._find()
        config = state.config
        if config.deliver_subject or config.ack_policy != AckPolicy.EXPLICIT:
            text = "it must be a pull consumer whose messages are acknowledged one by one"
            raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, f"{self.target}: {text}")
        self._created = state.created
        self.limits = state.limits
        self._filters = state.progress.filters or [">"]
        most = config.max_ack_pending or 0
        self.max_ack_pending = most if most > 0 else math.inf
        self.max_deliver = max(0, config.max_deliver or 0)
        self.waits = [config.ack_wait or _DEFAULT_ACK_WAIT, *(config.backoff or ())]
        return state

    async def check_dead_letter(self, js: JetStreamContext, subject: str) -> None:
        """
        Check the subject for dead letters, as far as it is a subject of a stream of this account.

        Raises:
            DeliveryError: ``incompatible-config``: the consumer reads it.
        """
        names, reason = await look_up(js, subject)
        if self.stream in names and any(covers(pattern, subject) for pattern in self._filters):
            text = f"it reads the subject for dead letters, {subject!r}: each one would be dead-lettered again"
            raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, f"{self.target}: {text}")
        if reason:
            _log.warning(
                "%s: no stream listens on the subject for dead letters, %r, in this account: %s. If it is mapped, or "
                "imported from another account or domain, check_dead_letter=False omits this check",
                self.target,
                subject,
                reason,
            )

    async def _find(self) -> ConsumerState:
        try:
            state = await self.api.consumer_state(self.stream, self.name)
        except ApiError as error:
            if self._create is None or error.code is not ErrorCode.CONSUMER_NOT_FOUND:
                raise
        else:
            if self._create is not None:
                self._compare(self._create, state.config)
            return state
        config = self._create.evolve(name=self.name, durable_name=self.name, ack_policy=AckPolicy.EXPLICIT)
        await self.api.create_consumer(self.stream, self.name, config.as_dict())
        return await self.api.consumer_state(self.stream, self.name)

    def _compare(self, wanted: ConsumerConfig, existing: ConsumerConfig) -> None:
        """Log the differences between ``create=`` and an existing consumer."""
        differences = config_differences(wanted, existing)
        if differences:
            text = "; ".join(differences)
            _log.warning("%s exists, and its configuration is not that of create=: %s", self.target, text)

    def limit(self, policy: RetryPolicy) -> tuple[RetryPolicy, int]:
        """
        Apply the server's limit of deliveries.

        Returns the policy to apply, and the number of deliveries above which a message is handled alone.
        """
        max_deliver = self.max_deliver
        if not max_deliver:
            return policy, policy.max_deliveries
        _log.warning(
            "%s: max_deliver is %d: after the last delivery a message is dead-lettered instead of redelivered, and the "
            "server drops it without a report if the process ends meanwhile",
            self.target,
            max_deliver,
        )
        if max_deliver < policy.max_deliveries:
            policy = RetryPolicy(max_deliver, policy.backoff, max(max_deliver, policy.unfinished_limit))
        return policy, min(policy.max_deliveries, max_deliver - 1)

    async def progress(self) -> Progress:
        """Request the progress of the consumer."""
        return await self.api.progress(self.stream, self.name)

    async def annotate(self, key: str, change: Callable[[str, int], str], *, is_repeated: bool = True) -> None:
        """
        Change a text in the metadata of the consumer: see :meth:`StreamApi.annotate_consumer`.

        One change after the other: each one reads all texts, and writes them. If one cannot be written by this client,
        the error has a code of ``METADATA_IMPOSSIBLE``.
        """
        api = self.api if is_repeated else self.api.without_retries()
        async with self._annotating:
            await api.annotate_consumer(self.stream, self.name, key, change)

    async def check_identity(self) -> None:
        """Log if another consumer has the name now; its messages are handled like those of the earlier one."""
        with suppress(DeliveryError):
            created = (await self.api.without_retries().consumer_state(self.stream, self.name)).created
            if created != self._created:
                self._created = created
                _log.warning(
                    "%s: it was deleted and created again, at %s; messages are delivered again", self.target, created
                )
