"""Deliveries that a handler gets together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, overload

from ..._numbers import check_optional_seconds
from ...codec.event import DecodedEvent
from ._delivery import Delivery

if TYPE_CHECKING:
    from ...arrow._received import RecordBatch


class Batch(Sequence[DecodedEvent]):
    """
    Events that a handler of :meth:`PullConsumer.run_batches <ce_nats.aio.PullConsumer.run_batches>` gets together.

    A sequence of events, in the order of the stream as far as a single handler keeps it.

    Args:
        deliveries: At least one.

    Attributes:
        deliveries: The delivery of each event. One that the handler settles itself is left as it is.
        rejects: Reasons of :meth:`reject`, by the index of the event.
        naks: Delays of :meth:`nak`, by the index of the event.
    """

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self.deliveries = tuple(deliveries)
        self.rejects: dict[int, str] = {}
        self.naks: dict[int, float | None] = {}

    @property
    def events(self) -> list[DecodedEvent]:
        """The events, in a new list."""
        return [delivery.event for delivery in self.deliveries]

    @overload
    def __getitem__(self, index: int) -> DecodedEvent: ...

    @overload
    def __getitem__(self, index: slice) -> list[DecodedEvent]: ...

    def __getitem__(self, index: int | slice) -> DecodedEvent | list[DecodedEvent]:
        if isinstance(index, slice):
            return [delivery.event for delivery in self.deliveries[index]]
        return self.deliveries[index].event

    def __iter__(self) -> Iterator[DecodedEvent]:
        for delivery in self.deliveries:
            yield delivery.event

    def __len__(self) -> int:
        return len(self.deliveries)

    def reject(self, index: int, reason: str = "") -> None:
        """
        Dead-letter one event when the handler has returned, instead of acknowledging it.

        If the handler raises an exception that is no :class:`BatchError`, this has no effect: it gets the event again.

        Args:
            index: Index of the event.
            reason: Text for the dead letter.

        Raises:
            IndexError: The batch has no such event.
        """
        index = self._checked(index)
        self.rejects[index] = reason
        self.naks.pop(index, None)

    def nak(self, index: int, delay: float | None = None) -> None:
        """
        Request redelivery of one event when the handler has returned, instead of acknowledging it.

        If the handler raises an exception that is no :class:`BatchError`, this has no effect: it gets the event again.

        Args:
            index: Index of the event.
            delay: Seconds until the redelivery; by default the policy's delay.

        Raises:
            IndexError: The batch has no such event.
            ValueError: ``delay`` is not a number of seconds, 0 or more.
        """
        check_optional_seconds("delay", delay)
        index = self._checked(index)
        self.naks[index] = delay
        self.rejects.pop(index, None)

    def columns(self, *, extensions: Mapping[str, str] | None = None) -> RecordBatch:
        """
        Return the messages and their events as Arrow columns; needs the extra ``arrow``.

        ``stream``, ``sequence`` (int64), ``subject``, ``headers`` (the header block) and ``data`` (binary), and the
        columns of :func:`ce_nats.arrow.explode_cloudevents`, which decodes the messages itself: data that an event only
        refers to is not read, and options of the consumer have no effect.

        Args:
            extensions: As for :func:`~ce_nats.arrow.explode_cloudevents`.

        Raises:
            ImportError: pyarrow is not installed.
            TypeError, ValueError: As :func:`~ce_nats.arrow.explode_cloudevents` does, for ``extensions``.
        """
        from ...arrow._received import columns_of

        return columns_of(
            (
                (delivery.stream, delivery.sequence, delivery.subject, delivery._entry.raw[3], delivery._entry.raw[2])
                for delivery in self.deliveries
            ),
            extensions,
        )

    def _checked(self, index: int) -> int:
        """Return the index from the front."""
        return range(len(self.deliveries))[index]

    def __repr__(self) -> str:
        return f"Batch({len(self.deliveries)} events, sequences from {self.deliveries[0].sequence})"
