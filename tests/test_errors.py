"""
Errors: stable codes, the requirement of each, short texts, copies.
"""

import copy
import importlib
import json
import pickle
import pkgutil
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from nats.js.errors import BadRequestError

import ce_nats
from ce_nats import (
    CeNatsError,
    DataLossError,
    DecodeError,
    DeliveryError,
    EncodeError,
    ErrorCode,
    PublishError,
    dedup_id,
    from_nats_message,
    to_nats_message,
)
from ce_nats.conformance import load_requirements
from ce_nats.errors import Failure, preview
from tests.support.strategies import Rude, attempt, binary_message, plain_event, structured_message
from tests.support.tables import each

FAULTS = [EncodeError, DecodeError, DeliveryError]
LONG = "x" * 100_000


def test_class_hierarchy() -> None:
    """EncodeError and DecodeError are ValueErrors, DeliveryError is not."""
    assert all(issubclass(fault, CeNatsError) for fault in FAULTS)
    assert [issubclass(fault, ValueError) for fault in FAULTS] == [True, True, False]


@each("code", ErrorCode)
def test_codes_are_strings(code: ErrorCode) -> None:
    """In JSON, in formatting and in comparisons."""
    assert re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", code.value)
    assert code == code.value == str(code) == f"{code}"
    assert json.dumps(code) == f'"{code.value}"'
    assert code.name.lower().replace("_", "-") == code.value


@each("code", ErrorCode)
def test_requirements_of_codes_are_documented(code: ErrorCode) -> None:
    requirement = DecodeError(code, "m").requirement
    assert requirement is None or requirement in load_requirements()


@each("name", ["id", "source", "type", "specversion", "subject", "dataschema", "time"])
def test_empty_attributes_have_their_own_requirement(name: str) -> None:
    error = DecodeError(ErrorCode.EMPTY_ATTRIBUTE, "m", attribute=name)
    assert error.requirement in load_requirements()


def copies(error: CeNatsError) -> list[Any]:
    """Return an error copied in all ways."""
    protocols = range(pickle.HIGHEST_PROTOCOL + 1)
    return [*(pickle.loads(pickle.dumps(error, each)) for each in protocols), copy.copy(error), copy.deepcopy(error)]


def family(kind: type[CeNatsError] = CeNatsError) -> Iterator[type[CeNatsError]]:
    """Yield a class of errors and all its subclasses in the package."""
    for module in pkgutil.walk_packages(ce_nats.__path__, "ce_nats."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    yield kind
    for child in kind.__subclasses__():
        if child.__module__.startswith("ce_nats."):
            yield from family(child)


def test_errors_can_be_copied_and_pickled() -> None:
    """Spark's workers pickle them; all attributes are kept, including those of subclasses."""
    for extra in ("pyspark", "google.protobuf", "typer"):  # the whole package is imported
        pytest.importorskip(extra)
    kinds = set(family())
    assert {*FAULTS, PublishError, DataLossError} <= kinds
    for kind in kinds:
        error = kind(ErrorCode.INVALID_URI, "what", attribute="a", header="ce-a", requirement="CE-AT-DS-02")
        own = {name for base in kind.__mro__ for name in vars(base).get("__annotations__", {})}
        for name in {*own, "later"}:
            setattr(error, name, ("a value of", name))
        for other in copies(error):
            assert type(other) is kind
            assert vars(other) == vars(error)
            assert other.args == error.args
            assert str(other) == str(error) == "invalid-uri: what"
            assert other.__cause__ is None
            assert not other.__suppress_context__


def test_all_error_classes_are_public() -> None:
    """They are in one module and exported from the root."""
    for extra in ("pyspark", "google.protobuf", "typer"):  # the whole package is imported
        pytest.importorskip(extra)
    for kind in family():
        assert kind.__module__ == "ce_nats.errors"
        assert getattr(ce_nats, kind.__name__) is kind
        assert kind.__name__ in ce_nats.__all__


def test_codes_of_the_network_are_documented() -> None:
    """Each has its own line in the docstring."""
    codes = list(ErrorCode)
    documented = re.findall(r"^ +- ``([a-z0-9-]+)``: ", ErrorCode.__doc__ or "", re.MULTILINE)
    assert documented == [code.value for code in codes[codes.index(ErrorCode.CONNECTION_FAILED) :]]


class TillError(DeliveryError):
    """A user-defined error with other arguments, and slots."""

    __slots__ = ("__secret", "empty", "till")

    def __init__(self, till: int) -> None:
        super().__init__(ErrorCode.DELIVERY_FAILED, f"till {till}")
        self.till = till
        self.__secret = "s"
        self.opened = "at nine"

    def secret(self) -> str:
        return self.__secret


def test_user_defined_errors_can_be_copied() -> None:
    """Subclasses with other arguments or slots need no code for it."""
    error = TillError(7)
    for other in copies(error):
        assert (type(other), other.till, other.secret(), other.opened) == (TillError, 7, "s", "at nine")
        assert not hasattr(other, "empty")
        assert (other.code, str(other)) == (error.code, "delivery-failed: till 7")


def raised(cause: BaseException) -> DeliveryError:
    """Return an error that has a cause."""
    try:
        raise DeliveryError(ErrorCode.DELIVERY_FAILED, "no") from cause
    except DeliveryError as error:
        return error


def test_causes_are_copied() -> None:
    """Also those of the failures in a PublishError."""
    refusal = BadRequestError(code=400, err_code=10071, description="wrong last sequence")
    event = plain_event()
    error = PublishError(ErrorCode.DELIVERY_FAILED, "two")
    error.failures = (Failure(event, "orders", raised(raised(refusal))),)
    for other in copies(error):
        (failure,) = other.failures
        assert (failure.event, failure.subject, str(failure.error)) == (event, "orders", "delivery-failed: no")
        cause = failure.error.__cause__.__cause__
        assert (type(cause), cause.err_code, str(cause)) == (type(refusal), 10071, str(refusal))
        assert failure.error.__suppress_context__


class OneWayError(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, *, what: str) -> None:
        super().__init__(what)


class MuteError(Exception):
    """Cannot be pickled and has no text."""

    def __str__(self) -> str:
        raise RuntimeError

    def __reduce__(self) -> Any:
        raise RuntimeError


@each("cause", [OneWayError(what="away"), Exception("away", open), ValueError("away", lambda: 0)])
def test_causes_that_cannot_be_pickled_are_replaced_by_their_text(cause: Exception) -> None:
    error = raised(cause)
    assert copy.copy(error).__cause__ is cause
    for other in pickle.loads(pickle.dumps(error)), copy.deepcopy(error):
        assert "away" in str(other.__cause__)
        assert str(other) == str(error)


def test_causes_without_text_are_replaced_by_their_class() -> None:
    assert str(pickle.loads(pickle.dumps(raised(MuteError()))).__cause__) == f"{__name__}.MuteError: "


def test_error_can_be_its_own_cause() -> None:
    """``raise error from error`` is allowed."""
    error = raised(Exception())
    error.__cause__ = error
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_codes_can_be_strings() -> None:
    """An unknown code is an error."""
    assert DecodeError("invalid-uri", "m").code is ErrorCode.INVALID_URI  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no-such-code"):
        DecodeError("no-such-code", "m")  # type: ignore[arg-type]


@each(
    "value",
    ["x" * 10**6, b"x" * 10**6, "\r\n\0\ud800" * 100, list(range(10**5)), Rude(), 10**5000],
)
def test_previews_are_one_short_line(value: object) -> None:
    """For any value."""
    text = preview(value)
    assert 0 < len(text) <= 63
    assert text.isprintable()


def decode_headers(payload: bytes = b"", **headers: str) -> Any:
    return from_nats_message(binary_message(payload, **headers))


def decode_members(members: str) -> Any:
    start = '{"specversion":"1.0","id":"1","source":"/s","type":"t",'
    return from_nats_message(structured_message(f"{start}{members}}}".encode()))


def decode_other(data: Any = b"", **headers: Any) -> Any:
    return from_nats_message(SimpleNamespace(data=data, headers=headers))


LARGE: dict[str, Callable[[], Any]] = {
    "header with a long name": lambda: decode_headers(**{LONG: "%00"}),
    "array with a long name": lambda: decode_members(f'"{LONG}":[]'),
    "number with a long name": lambda: decode_members(f'"{LONG}":99999999999'),
    "status": lambda: decode_other(Status=LONG),
    "header that is not text": lambda: decode_other(**{LONG: 5}),
    "payload that is not bytes": lambda: decode_other(LONG),
    "attribute with a long name": lambda: to_nats_message(plain_event(**{LONG: 1.5})),
    "attribute": lambda: to_nats_message(plain_event(x=[LONG])),
    "data": lambda: to_nats_message(plain_event({"a": {LONG}})),
    "key of data": lambda: to_nats_message(plain_event({("a" * 1000, LONG): 1})),
    "subject": lambda: to_nats_message(plain_event(), LONG + " "),
    "name of an additional header": lambda: to_nats_message(plain_event(), headers={LONG + " ": "a"}),
    "additional header": lambda: to_nats_message(plain_event(), headers={LONG: "\n" + LONG}),
    "reserved header": lambda: to_nats_message(plain_event(), headers={"ce-" + LONG: "a"}),
    "deduplication": lambda: dedup_id(plain_event(source="\0" + LONG)),
}


@each("call", LARGE.values())
def test_texts_of_errors_are_short(call: Callable[[], Any]) -> None:
    """They contain neither the payload nor other long text of a peer."""
    _, error = attempt(CeNatsError, call)
    assert error is not None
    assert len(str(error)) < 400


def test_causes_are_kept() -> None:
    """The exception of the standard library is the __cause__."""
    _, error = attempt(DecodeError, from_nats_message, structured_message(b"\xff"))
    assert isinstance(error.__cause__, ValueError)
