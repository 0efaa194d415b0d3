"""Patterns, parameters of handlers, and errors at registration. ``aio/scenarios/test_routing.py`` has servers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent
from hypothesis import example, given
from hypothesis import strategies as st

from ce_nats import (
    DecodedEvent,
    DecodeError,
    ErrorCode,
    EventLike,
    Reject,
    aio,
    cesql,
    from_nats_message,
    sync,
    to_nats_message,
)
from ce_nats.redelivery import Action, Reason
from ce_nats.routing import Router, SyncRouter
from ce_nats.testing import FakeDelivery
from tests.support.tables import each


@dataclass
class Order:
    total: float


class Invoice(pydantic.BaseModel):
    number: int


class Refund(msgspec.Struct):
    total: float


class Nothing:
    """Neither a model nor a type of JSON."""


@dataclass
class WithEvent:
    """A model whose fields have the names of members of a delivery."""

    event: str = ""
    subject: str = ""


def message_of(kind="com.example.order.placed", data=None, **options):
    event = CloudEvent({"id": "1", "source": "/tests", "type": kind}, {"total": 12.5} if data is None else data)
    return to_nats_message(event, "orders.new", **options)


def delivery_of(*args, **options):
    return FakeDelivery(message_of(*args, **options))


async def nothing() -> None: ...


# --- Patterns -------------------------------------------------------------------------------------------------------


def router_of(*patterns, **options):
    router = Router(**options)
    for pattern in patterns:
        router.on(pattern)(nothing)
    return router


@each(
    ("kind", "pattern"),
    [
        ("com.example.order.placed", "com.example.order.placed"),
        ("com.example.order.placed.v2", "com.example.order.*"),
        ("com.example.order.", "com.example.order.*"),
        ("com.example.order", "com.example.*"),
        ("com.example.orders.x", "com.example.*"),
        ("COM.EXAMPLE.ORDER.placed", "*"),
        ("org", "*"),
    ],
)
def test_longest_match_wins(kind, pattern):
    router = router_of("*", "com.example.order.placed", "com.example.*", "com.example.order.*")
    assert router.match(kind) == pattern


def test_type_wins_over_a_prefix_of_any_length():
    assert router_of("ab*", "ab").match("ab") == "ab"
    assert router_of("ab*", "a*").match("ab") == "ab*"


def test_unknown_type_has_no_match():
    assert Router().match("a") is None
    assert router_of("a.b", "a.b.*").match("a.") is None
    assert Router(unknown=nothing).match("a") == "*"


def test_patterns_are_listed_in_the_order_of_their_precedence():
    router = router_of("*", "b*", "a.*", "c.*", "b", "a")
    assert router.patterns == ["a", "b", "a.*", "c.*", "b*", "*"]
    assert repr(router) == "Router(a, b, a.*, c.*, b*, *)"


texts = st.text("ab.", max_size=5)


def naive(patterns, kind):
    """Return the pattern that wins, by trying all of them."""
    if kind in patterns:
        return kind
    matching = [one for one in patterns if one.endswith("*") and kind.startswith(one[:-1])]
    return max(matching, key=len, default=None)


@given(st.sets(st.builds(str.__add__, texts, st.sampled_from(["", "*"])).filter(bool)), st.lists(texts, min_size=1))
@example({"*", "a*", "a"}, ["", "a", "ab"])
def test_match_is_that_of_a_naive_reference(patterns, kinds):
    router = router_of(*patterns)
    for kind in kinds:
        assert router.match(kind) == naive(patterns, kind)


@each("pattern", ["", "**", "a.*.b", "*.a", "a*b*", "a\n*", "\x00", "\ud800"])
@each("router", [Router, SyncRouter])
def test_invalid_patterns_are_rejected(router, pattern):
    with pytest.raises(ValueError, match=r"^pattern must "):
        router().on(pattern)


def test_error_of_a_pattern_has_the_reason():
    with pytest.raises(
        ValueError, match=r"^pattern must match types of events, got .*: attribute 'type' must not contain"
    ):
        Router().on("a\n*")


@each("pattern", [None, 5, b"a", ["a"], nothing])
def test_patterns_of_other_types_are_rejected(pattern):
    with pytest.raises(TypeError, match=r"^pattern must be a str, got "):
        Router().on(pattern)


@each("pattern", ["a", "a.*", "*"])
def test_second_handler_of_a_pattern_is_rejected(pattern):
    router = router_of("a", "a.*", "*")
    with pytest.raises(ValueError, match=r"^pattern '.*' must have one handler, has the function nothing$"):
        router.on(pattern)(nothing)


def test_handler_of_unknown_types_is_that_of_all_types():
    router = Router(unknown=nothing)
    assert router.patterns == ["*"]
    with pytest.raises(ValueError, match="must have one handler"):
        router.on("*")(nothing)


@each("unknown", ["ignore", "", None, 5, True])
def test_invalid_choices_for_unknown_types_are_rejected(unknown):
    for router in (Router, SyncRouter):
        with pytest.raises(ValueError, match=r"^unknown must be 'reject', 'skip' or a handler, got "):
            router(unknown=unknown)


# --- Parameters -----------------------------------------------------------------------------------------------------


async def by_annotation(order: Order, got: DecodedEvent, item: aio.Delivery):
    return order, got, item


async def in_any_order(item: aio.Received, *, got: BaseCloudEvent, order: Order):
    return order, got, item


async def by_name(event, delivery, order: Order):
    return order, event, delivery


async def positional(order: Order, event: Any, /, delivery: object = None):
    return order, event, delivery


async def optional(order: Order, event: DecodedEvent | None = None, item: aio.Delivery | None = None):
    return order, event, item


async def with_defaults(order: Order, got: EventLike, item: sync.Delivery, retries: int = 3, *args, **kwargs):
    assert (retries, args, kwargs) == (3, (), {})
    return order, got, item


async def unresolvable(order: Order, event: NotImported, delivery: AlsoNotImported):  # type: ignore[name-defined]  # noqa: F821
    return order, event, delivery


def decorated(function):
    @functools.wraps(function)
    async def wrapper(*args, **kwargs):
        return await function(*args, **kwargs)

    return wrapper


class Handlers:
    async def method(self, order: Order, event: DecodedEvent, delivery: aio.Delivery):
        return order, event, delivery

    async def __call__(self, order: Order, event: DecodedEvent, delivery: aio.Delivery):
        return order, event, delivery


async def partly(prefix, order: Order, event: DecodedEvent, delivery: aio.Delivery):
    assert prefix == "given"
    return order, event, delivery


HANDLERS: list[Any] = [by_annotation, in_any_order, by_name, positional, optional, with_defaults, unresolvable]
HANDLERS += [decorated(by_annotation), Handlers().method, Handlers(), functools.partial(partly, "given")]


@pytest.mark.parametrize("handler", HANDLERS, ids=range(len(HANDLERS)))
async def test_parameters_are_filled(handler):
    router, delivery = Router(), delivery_of()
    assert router.on("*")(handler) is handler
    assert await router(delivery) == (Order(12.5), delivery.event, delivery)


@pytest.mark.parametrize(
    ("model", "data", "expected"),
    [
        (Order, {"total": 1}, Order(1.0)),
        (Refund, {"total": 1}, Refund(1.0)),
        (Invoice, {"number": 7}, Invoice(number=7)),
        (Order | None, {"total": 1}, Order(1.0)),
        (list[Invoice], [{"number": 7}], [Invoice(number=7)]),
        (Annotated[int, msgspec.Meta(gt=0)], 5, 5),
        (dict[str, Any], {"a": [1]}, {"a": [1]}),
        (Any, {"a": [1]}, {"a": [1]}),
        (WithEvent, {"event": "a"}, WithEvent("a")),
    ],
    ids=str,
)
async def test_data_has_the_type_of_its_parameter(model, data, expected):
    async def handle(value: model):  # type: ignore[valid-type]
        return value

    handle.__annotations__["value"] = model  # the text of the annotation names a local variable

    async def without_annotation(value):
        return value

    delivery = delivery_of("a", data)
    for handler, options in ((handle, {}), (without_annotation, {"data": model}), (handle, {"data": model})):
        router = Router()
        router.on("a", **options)(handler)
        assert await router(delivery) == expected


async def test_handler_without_parameters():
    calls = []

    async def handle():
        calls.append(1)

    router = Router()
    router.on("*")(handle)
    await router(delivery_of())
    assert calls == [1]


async def test_data_argument_wins_over_the_annotation():
    router = Router()
    router.on("*", data=Refund)(by_annotation)
    assert (await router(delivery_of()))[0] == Refund(12.5)


async def test_default_value_is_filled_if_data_names_its_type():
    async def handle(order: Order = None):
        return order

    router = Router()
    router.on("a", data=Order)(handle)
    router.on("b")(handle)
    assert await router(delivery_of("a")) == Order(12.5)
    assert await router(delivery_of("b")) is None


async def neither(order): ...


async def nothing_to_fill(order: Order, other: Refund): ...


async def not_a_model(value: Nothing): ...


async def optional_nothing(value: Nothing | None): ...


async def not_a_type(value: 5): ...  # type: ignore[valid-type]


async def unknown_name(value: NotImported): ...  # type: ignore[name-defined]  # noqa: F821


async def function_as_type(value: Callable[[], int]): ...


async def only_event(event: DecodedEvent): ...


@each(
    ("handler", "options", "text"),
    [
        (neither, {}, "'order' of the function neither cannot be filled: it has no annotation, and data= is not given"),
        (nothing_to_fill, {}, "'other' of the function nothing_to_fill cannot be filled: 'order' is the data already"),
        (unknown_name, {}, "'value' of .*: its annotation 'NotImported' cannot be resolved, and data= is not given"),
        (not_a_model, {}, "'value' of .*: the type must be one that msgspec or pydantic can read, got Nothing"),
        (optional_nothing, {}, "the type must be one that msgspec or pydantic can read, got "),
        (not_a_type, {}, "'value' of the function not_a_type"),
        (function_as_type, {}, "the type must be one that msgspec or pydantic can read"),
        (by_annotation, {"data": Nothing}, "the type must be one that msgspec or pydantic can read, got Nothing"),
        (only_event, {"data": Order}, "only_event must have a parameter for the data, because data= has its type"),
        (Handlers.method, {}, "'self' of the function Handlers.method cannot be filled"),
    ],
)
def test_parameters_that_cannot_be_filled_are_errors_at_registration(handler, options, text):
    router = Router()
    with pytest.raises(TypeError, match=text):
        router.on("a", **options)(handler)
    assert router.patterns == []


def plain(event): ...


@each("handler", [plain, Order, 5, None, lambda event: nothing(), SyncRouter()])
def test_handlers_must_be_async(handler):
    with pytest.raises(TypeError, match=r"^a handler of Router must be an async function"):
        Router().on("a")(handler)


@each("handler", [by_annotation, Handlers(), 5, None, Router(unknown=nothing)])
def test_handlers_of_a_sync_router_must_not_be_async(handler):
    with pytest.raises(TypeError, match=r"^a handler of SyncRouter must be a function that is not async"):
        SyncRouter().on("a")(handler)


def test_handlers_without_a_signature_are_rejected():
    with pytest.raises(TypeError, match="must have a signature"):
        SyncRouter().on("a")(dict)


# --- Deliveries -----------------------------------------------------------------------------------------------------


async def settled(router, delivery):
    """Return the decision about a delivery, and the exception of its block."""
    error = None
    try:
        async with delivery:
            await router(delivery)
    except Exception as raised:
        error = raised
    return delivery.decision, error


async def test_handled_event_is_acknowledged():
    decision, error = await settled(router_of("com.example.*"), delivery_of())
    assert (decision.action, error) == (Action.ACK, None)


async def test_unknown_type_is_rejected():
    decision, error = await settled(router_of("com.example.*"), delivery_of("org.example"))
    assert (decision.action, decision.reason) == (Action.DEAD_LETTER, Reason.REJECTED)
    assert isinstance(error, Reject)
    assert str(error) == "no handler for events of type 'org.example'"


async def test_long_types_are_shortened_in_the_reason():
    _, error = await settled(Router(), delivery_of("x" * 60_000))
    assert len(str(error)) < 300


async def test_unknown_type_is_skipped():
    decision, error = await settled(router_of("a", unknown="skip"), delivery_of())
    assert (decision.action, error) == (Action.ACK, None)


async def test_unknown_type_is_passed_to_a_handler():
    seen = []

    async def handle(event: DecodedEvent):
        seen.append(event.type)

    router = Router(unknown=handle)
    router.on("a")(nothing)
    for kind in ("a", "b"):
        assert (await settled(router, delivery_of(kind)))[0].action is Action.ACK
    assert seen == ["b"]


async def test_data_of_another_type_is_dead_lettered_at_once():
    router = Router()
    router.on("*")(by_annotation)
    decision, error = await settled(router, delivery_of(data={"total": "many"}))
    assert (decision.action, decision.reason) == (Action.DEAD_LETTER, Reason.REJECTED)
    assert isinstance(error, DecodeError)
    assert error.code is ErrorCode.DATA_MISMATCH


async def test_failed_handler_is_retried():
    async def handle():
        raise KeyError

    router = Router()
    router.on("*")(handle)
    decision, error = await settled(router, delivery_of())
    assert decision.action is Action.RETRY
    assert isinstance(error, KeyError)


async def test_message_without_an_event_raises_its_error():
    """Subscriptions yield such messages; consumers do not."""
    error = DecodeError(ErrorCode.NOT_A_CLOUDEVENT, "no")
    received = aio.Received(SimpleNamespace(subject="a", reply=""), None, error)
    with pytest.raises(DecodeError) as caught:
        await Router(unknown="skip")(received)
    assert caught.value is error


def test_sync_router():
    router = SyncRouter()

    @router.on("com.example.order.*")
    def handle(order: Order, event: DecodedEvent, delivery: sync.Delivery):
        return order, event, delivery

    received = SimpleNamespace(event=from_nats_message(message_of()))
    assert router(received) == (Order(12.5), received.event, received)
    with pytest.raises(Reject, match="'other'"):
        router(SimpleNamespace(event=from_nats_message(message_of("other"))))
    assert SyncRouter(unknown="skip")(received) is None
    assert SyncRouter(unknown=lambda event: event.id)(received) == "1"


@given(st.text(min_size=1, max_size=300))
async def test_any_type_is_routed_or_rejected(kind):
    event = DecodedEvent({"specversion": "1.0", "id": "1", "source": "/", "type": kind})
    router = router_of("a", "b*")
    expected = kind == "a" or kind.startswith("b")
    try:
        await router(SimpleNamespace(event=event))
    except Reject:
        assert not expected
    else:
        assert expected


# --- Batches --------------------------------------------------------------------------------------------------------


def batch_of(*kinds):
    return aio.Batch([delivery_of(kind, {"total": number}) for number, kind in enumerate(kinds)])


async def call(router, batch):
    result = router(batch)
    return result if isinstance(router, SyncRouter) else await result


@pytest.fixture(params=["async", "sync"])
def routed(request):
    """Return a router with handlers of ``a``, one by one, and ``b``, together, and the list of their calls."""
    router, calls = (Router if request.param == "async" else SyncRouter)(), []

    def one(event):
        calls.append(event.data["total"])
        if event.data["total"] == 5:
            raise KeyError

    def many(batch):
        calls.append([event.data["total"] for event in batch])
        if batch[0].data["total"] == 4:
            raise aio.BatchError({1: KeyError()})
        if batch[0].data["total"] == 3:
            raise KeyError
        batch.reject(0, "no")
        batch.nak(-1, 2)

    if request.param == "async":

        @router.on("a")
        async def handle_one(event):
            one(event)

        @router.batch("b")
        async def handle_many(batch):
            many(batch)
    else:
        router.on("a")(one)
        router.batch("b")(many)
    return router, calls


async def test_batch_is_split_by_handlers(routed):
    router, calls = routed
    batch = batch_of("b", "a", "b", "a", "b")
    await call(router, batch)
    assert calls == [[0, 2, 4], 1, 3]
    assert (batch.rejects, batch.naks) == ({0: "no"}, {4: 2})
    assert router.has_batches
    assert router.split(batch) == [[0, 2, 4], [1, 3]]


async def test_failed_events_of_a_batch(routed):
    router, calls = routed
    with pytest.raises(aio.BatchError) as caught:
        await call(router, batch_of("a", "c", "a", "a", "b", "a", "b", "b"))
    assert {index: type(error) for index, error in caught.value.errors.items()} == {1: Reject, 5: KeyError, 6: KeyError}
    assert calls == [0, 2, 3, 5, [4, 6, 7]]


@pytest.mark.parametrize(("kinds", "error"), [("cccbb", KeyError), ("cccb", aio.BatchError)])
async def test_failed_handler_of_a_batch(routed, kinds, error):
    """Its events may be divided, unless there is one."""
    router, _ = routed
    with pytest.raises(error):
        await call(router, batch_of(*kinds))


async def test_handler_of_batches_does_not_get_a_single_event(routed):
    router, calls = routed
    with pytest.raises(TypeError, match="must be called with a batch"):
        await call(router, delivery_of("b"))
    assert calls == []


@pytest.mark.parametrize("handler", [lambda: None, lambda a, b: None, lambda *, batch: None])
def test_handler_of_batches_takes_one_argument(handler):
    with pytest.raises(TypeError, match="must take one argument, the batch"):
        SyncRouter().batch("a")(handler)


def test_pattern_has_one_handler_of_either_kind():
    router = router_of("a")
    with pytest.raises(ValueError, match="must have one handler"):
        router.batch("a")(nothing_of)
    with pytest.raises(TypeError, match="async function"):
        router.batch("b")(print)
    assert not router.has_batches


async def nothing_of(batch): ...


# --- Filters --------------------------------------------------------------------------------------------------------


async def test_filter_of_a_handler() -> None:
    """Other events of the pattern are skipped, also if a shorter pattern matches; unknown types are unknown as ever."""
    router, seen = Router(), []

    @router.on("order.*", filter="tier = 'gold'")
    async def gold(event: DecodedEvent) -> str:
        seen.append(event.id)
        return "handled"

    @router.on("*")
    async def other(event: DecodedEvent) -> str:
        return "other"

    def item(kind: str, **attributes: str) -> Any:
        event = DecodedEvent({"specversion": "1.0", "id": "1", "source": "/s", "type": kind, **attributes})
        return SimpleNamespace(event=event)

    assert await router(item("order.paid", tier="gold")) == "handled"
    assert await router(item("order.paid", tier="silver")) is None
    assert await router(item("order.paid")) is None
    assert await router(item("refund")) == "other"
    assert seen == ["1"]


@pytest.mark.parametrize("router", [Router(), SyncRouter()])
def test_filter_is_checked_when_it_is_registered(router: Any) -> None:
    for register in (router.on, router.batch):
        with pytest.raises(cesql.ParseError):
            register("order.*", filter="tier =")
    assert router.patterns == []
