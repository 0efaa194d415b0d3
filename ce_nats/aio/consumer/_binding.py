"""Look up or create the consumer on the server, and notice when it is another one."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import Final

from nats.js.api import AckPolicy, ConsumerConfig

from ...errors import ApiError, DeliveryError, ErrorCode
from ...redelivery import RetryPolicy
from .._jetstream_api import ConsumerState, Progress, StreamApi
from .._util.checks import config_differences

_log: Final = logging.getLogger(__name__)

_DEFAULT_ACK_WAIT: Final = 30.0
# The common form of what parse_ack_subject() accepts: deliveries, sequence, sequence in the consumer, time, pending.
_ACK_SUBJECT: Final = rb"\$JS\.ACK\.%s\.%s\.([0-9]{1,20})\.([0-9]{1,20})\.[0-9]{1,20}\.[0-9]{1,20}\.[0-9]{1,20}"


class Binding:
    """
    A durable pull consumer on the server.

    Args:
        api: JetStream's API.
        stream: Name of the stream.
        name: Name of the consumer.
        create: Configuration with which it is created if it does not exist, or None.

    Attributes:
        api: As the argument.
        stream: As the argument.
        name: As the argument.
        target: Name for errors and the log.
        is_ack_subject: Matches the reply subjects of its messages, without a domain; the groups are numbers:
            deliveries, and the sequence in the stream.
        waits: Times until the server redelivers a message, in seconds.
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
        self._create = create
        self._created = ""

    async def open(self) -> ConsumerState:
        """
        Return the consumer, which is created if it does not exist and may be created.

        Raises:
            DeliveryError: As :meth:`PullConsumer.__aenter__` does.
        """
        state = await self._find()
        config = state.config
        if config.deliver_subject or config.ack_policy != AckPolicy.EXPLICIT:
            text = "it must be a pull consumer whose messages are acknowledged one by one"
            raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, f"{self.target}: {text}")
        self._created = state.created
        self.waits = [config.ack_wait or _DEFAULT_ACK_WAIT, *(config.backoff or ())]
        return state

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

    def limit(self, policy: RetryPolicy, max_deliver: int) -> tuple[RetryPolicy, int]:
        """
        Apply the server's limit of deliveries.

        Args:
            policy: The policy of the program.
            max_deliver: The limit; 0 or less means without a limit.

        Returns:
            The policy to apply, and the number of deliveries above which a message is handled alone.
        """
        if max_deliver <= 0:
            return policy, policy.max_deliveries
        _log.warning(
            "%s: max_deliver is %d, so the server drops a message without a report after %d deliveries, handled or not",
            self.target,
            max_deliver,
            max_deliver,
        )
        if max_deliver < policy.max_deliveries:
            policy = RetryPolicy(max_deliver, policy.backoff, max(max_deliver, policy.unfinished_limit))
        return policy, min(policy.max_deliveries, max_deliver - 1)

    async def progress(self) -> Progress:
        """
        Request the progress of the consumer.

        Raises:
            DeliveryError: As :meth:`StreamApi.progress` does.
        """
        return await self.api.progress(self.stream, self.name)

    async def check_identity(self) -> None:
        """Log if another consumer has the name now; its messages are handled like those of the earlier one."""
        with suppress(DeliveryError):
            created = (await self.api.without_retries().consumer_state(self.stream, self.name)).created
            if created != self._created:
                self._created = created
                _log.warning(
                    "%s: it was deleted and created again, at %s; messages are delivered again", self.target, created
                )
