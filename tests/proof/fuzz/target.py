"""What is fuzzed: a function that accepts any bytes, and inputs to begin with."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from ce_nats import CeNatsError, DecodeError, ErrorCode
from tests.proof.fuzz import corpus
from tests.proof.fuzz.inputs import OPTIONS_SIZE

MAX_ERROR_TEXT = 2100  # docs: an error text has at most 2,000 characters; the code is before it

Check = Callable[[list[bytes]], Iterable[Hashable]]


@dataclass(frozen=True)
class Target:
    """
    One thing to fuzz.

    Attributes:
        name: Name on the command line, and of its file in the corpus.
        promise: What must hold for every input.
        check: Run inputs and return their outcomes; an input with a new outcome is mutated further. Any exception is a
            finding.
        seeds: Return inputs to begin with.
        batch: Number of inputs of a call. Inputs are independent of each other, so it changes only the speed.
        is_aligned: Whether all inputs of a batch are made from few others, and have the options of the first one: a
            decoder of columns then decodes them together.
        long: Size of the inputs with repeated pieces. The slowest of them take a tenth of ``limits.LIMIT``.
    """

    name: str
    promise: str
    check: Check
    seeds: Callable[[], Iterable[bytes]]
    batch: int = 500
    is_aligned: bool = False
    long: int = 2**16

    def with_options_of(self, first: bytes, other: bytes) -> bytes:
        return first[:OPTIONS_SIZE] + other[OPTIONS_SIZE:]

    def initial(self) -> list[bytes]:
        """Return stored inputs and seeds without duplicates, in a fixed order."""
        return list(dict.fromkeys([*corpus.read(self.name), *self.seeds()]))


def one_by_one(function: Callable[[bytes], Hashable]) -> Check:
    """Return a check from a function of one input."""
    return lambda inputs: [function(data) for data in inputs]


def decoder(function: Callable[[bytes], Hashable]) -> Check:
    """Return a check of a function that must return, or raise a DecodeError with a code."""
    return one_by_one(expecting(DecodeError, function))


def expecting(
    allowed: type[CeNatsError] | tuple[type[Exception], ...], function: Callable[[bytes], Hashable]
) -> Callable[[bytes], Hashable]:
    """Return a function with errors of the allowed classes as outcomes; every other exception is raised."""

    def outcome(data: bytes) -> Hashable:
        try:
            return function(data)
        except allowed as error:
            return checked_error(error)

    return outcome


def own(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Decode what ce_nats has encoded: a documented error is then a finding, too."""
    try:
        return function(*args, **kwargs)
    except CeNatsError as error:
        raise AssertionError(f"what was encoded is not decoded: {error}") from error


def checked_error(error: Exception) -> Hashable:
    """Return what identifies an error, after checking its code and the limit of its text."""
    if not isinstance(error, CeNatsError):
        return type(error).__name__
    assert isinstance(error.code, ErrorCode), repr(error.code)
    assert len(str(error)) <= MAX_ERROR_TEXT, len(str(error))
    return error.code, error.requirement
