"""
Route events to handlers by their type.

    router = Router()

    @router.on("com.example.order.*")
    async def handle(order: Order, delivery: aio.Delivery) -> None: ...

    await consumer.run(router)

A router is a handler: it is called with a delivery, and calls the function whose pattern matches the type of the event.
``ce_nats.sync`` needs a :class:`SyncRouter`, whose handlers are not async.

A pattern is a type, or the beginning of types followed by ``*``: ``com.example.order.*`` matches each type that begins
with ``com.example.order.``, ``*`` matches every type. ``*`` may only be the last character. If several patterns match,
the longest one wins, and a type without ``*`` before all others. So there is always one winner, and the order of
registration is irrelevant.

The parameters of a handler are filled by their annotations:

- :class:`~ce_nats.DecodedEvent`, or a base class of it: the event;
- a delivery (``aio.Delivery``, ``aio.Received``, ``sync.Delivery``, or another class with a property ``event``): the
  delivery;
- any other type: the data, validated as by ``event.data_as(type)``, after ``delivery.resolve()``.

Parameters without an annotation are filled by their names, ``event`` and ``delivery``; another one is the data if
``data=`` has its type. All parameters may be missing. A parameter with a default that is neither the event nor the
delivery keeps its default, unless its annotation is that of ``data=``.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from types import NoneType, SimpleNamespace
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, get_args, get_type_hints

from . import cesql
from ._callables import is_async, name_of
from .cesql._messages import MessageFilter
from .codec import models
from .codec._type_patterns import TypePatterns
from .codec.event import DecodedEvent, EventLike
from .errors import BatchError, Reject, preview

__all__ = ["Router", "SyncRouter"]

AsyncHandler: TypeAlias = Callable[..., Awaitable[object]]
SyncHandler: TypeAlias = Callable[..., object]
Unknown: TypeAlias = Literal["reject", "skip"]

_AsyncT = TypeVar("_AsyncT", bound=AsyncHandler)
_SyncT = TypeVar("_SyncT", bound=SyncHandler)
_HandlerT = TypeVar("_HandlerT", bound=Callable[..., Any])

_NOT_PASSED: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# Annotations without information: a parameter is filled by its name.
_UNINFORMATIVE: Final = (inspect.Parameter.empty, Any, object)


class HasEvent(Protocol):
    """A delivery of any kind, or a message of a subscription."""

    @property
    def event(self) -> DecodedEvent: ...


_Source: TypeAlias = Callable[[HasEvent], Any]


class _Route(NamedTuple):
    """A handler, and the sources of its arguments."""

    handler: Callable[..., Any]
    positional: list[_Source]
    named: dict[str, _Source]
    has_data: bool = False  # a parameter is the data
    gets_batch: bool = False  # its argument is a batch
    filter: MessageFilter | None = None

    def call(self, delivery: HasEvent) -> Any:
        positional = [source(delivery) for source in self.positional]
        return self.handler(*positional, **{name: source(delivery) for name, source in self.named.items()})


class _Call(NamedTuple):
    """
    A call of a handler for some events of a batch.

    Attributes:
        handle: Calls it.
        indexes: Indexes of the events.
        errors: Exceptions of single events of the batch.
    """

    handle: Callable[[], Any]
    indexes: list[int]
    errors: dict[int, Exception]

    def fail(self, error: Exception) -> bool:
        """Note the exception; return False if it is not known which events have failed."""
        indexes = self.indexes
        if len(indexes) == 1:
            self.errors[indexes[0]] = error.errors.get(0, error) if isinstance(error, BatchError) else error
        elif isinstance(error, BatchError) and all(0 <= index < len(indexes) for index in error.errors):
            self.errors.update((indexes[index], each) for index, each in error.errors.items())
        else:
            return False
        return True


class AnyRouter:
    """Patterns and their handlers: what :class:`Router` and :class:`SyncRouter` have in common."""

    def __init__(self, unknown: object) -> None:
        self._routes: TypePatterns[_Route] = TypePatterns()
        self._skips = unknown == "skip"
        if callable(unknown):
            self._add("*", unknown, None)
        elif unknown not in ("reject", "skip"):
            raise ValueError(f"unknown must be 'reject', 'skip' or a handler, got {preview(unknown)}")

    @property
    def patterns(self) -> list[str]:
        """Patterns in the order in which they are tried: exact types, then prefixes, the longest first."""
        return self._routes.patterns

    def match(self, type: str) -> str | None:  # noqa: A002
        """
        Return the pattern whose handler is called for events of a type; None if no pattern matches.

        Args:
            type: Type of an event.
        """
        found = self._routes.match(type)
        return None if found is None else found[0]

    @property
    def has_batches(self) -> bool:
        """Whether a handler gets batches, so that a consumer needs :meth:`~ce_nats.aio.PullConsumer.run_batches`."""
        return any(route.gets_batch for route in self._routes.values)

    def split(self, events: Sequence[DecodedEvent]) -> list[list[int]]:
        """
        Return the indexes of the events that each handler gets, in the order of its first event.

        ``run_batches()`` calls the router with the events of one handler, so that an exception concerns only these.

        Args:
            events: Events of a batch.
        """
        groups: dict[str | None, list[int]] = {}
        for index, event in enumerate(events):
            groups.setdefault(self.match(event.type), []).append(index)
        return [*groups.values()]

    def _find(self, delivery: HasEvent) -> _Route | None:
        """
        Return the route of an event; None if it is skipped.

        Raises:
            Reject: No pattern matches, and unknown types are rejected.
            TypeError: Its handler gets batches.
        """
        event = delivery.event
        found = self._routes.match(event.type)
        if found is None:
            if self._skips:
                return None
            raise Reject(f"no handler for events of type {preview(event.type, 200)}")
        if found[1].gets_batch:
            raise TypeError(f"{name_of(found[1].handler)} gets batches: the router must be called with a batch")
        return found[1] if _passes(found[1], delivery) else None

    def _calls(self, batch: Any) -> Iterator[_Call]:
        """
        Yield the calls for a batch; marks of a part are also those of the batch, if it has no exception.

        Raises:
            BatchError: Some events have failed; after the last call.
        """
        errors: dict[int, Exception] = {}
        for group in self.split(batch):
            found = self._routes.match(batch[group[0]].type)
            if found is None or not found[1].gets_batch:
                for index in group:
                    yield _Call(partial(self, batch.deliveries[index]), [index], errors)
                continue
            group = [index for index in group if _passes(found[1], batch.deliveries[index])]
            if not group:
                continue
            part = batch if len(group) == len(batch) else type(batch)([batch.deliveries[index] for index in group])
            yield _Call(partial(found[1].handler, part), group, errors)
            if part is not batch:
                for index, reason in part.rejects.items():
                    batch.reject(group[index], reason)
                for index, delay in part.naks.items():
                    batch.nak(group[index], delay)
        if errors:
            raise BatchError(errors)

    def _registration(
        self,
        pattern: str,
        filter: str | cesql.Expression | None,
        *,
        data: Any = None,
        gets_batch: bool = False,
    ) -> Callable[[_HandlerT], _HandlerT]:
        """Return a decorator that registers a handler; an invalid pattern or filter is an error now."""
        found = MessageFilter.of(filter, f"router pattern {pattern}")

        def register(handler: _HandlerT) -> _HandlerT:
            self._add(pattern, handler, data, found, gets_batch=gets_batch)
            return handler

        self._routes.get(pattern)
        return register

    def _add(
        self,
        pattern: str,
        handler: Callable[..., Any],
        data: Any,
        filter: MessageFilter | None = None,
        *,
        gets_batch: bool = False,
    ) -> None:
        known = self._routes.get(pattern)
        self._check_kind(handler)
        if known is not None:
            raise ValueError(f"pattern {pattern!r} must have one handler, has {name_of(known.handler)}")
        route = _batch_route(handler) if gets_batch else _route(handler, data)
        self._routes.add(pattern, route._replace(filter=filter))

    def _check_kind(self, handler: object) -> None:
        raise NotImplementedError

    def __call__(self, delivery: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({', '.join(self.patterns)})"


class Router(AnyRouter):
    """
    Async handler that calls other handlers, chosen by the type of the event.

        router = Router()

        @router.on("com.example.order.placed")
        async def place(order: Order) -> None: ...

        @router.on("com.example.order.*")
        async def log(event: DecodedEvent, delivery: aio.Delivery) -> None: ...

        await consumer.run(router)

    ``await router(item)`` also works for messages of subscriptions, deliveries of ``ce_nats.stan``, and fake
    deliveries, and for batches; it returns the result of the handler, but None for a batch. All exceptions propagate:
    those of the handler; ``DecodeError`` with ``data-mismatch`` if the data does not have the type of the parameter;
    :class:`~ce_nats.Reject` for unknown types; the error of a message without an event. A consumer dead-letters
    messages with the second and the third at once.

    Args:
        unknown: For events whose type matches no pattern: ``"reject"`` raises :class:`~ce_nats.Reject`, whose text has
            the type; ``"skip"`` does nothing, so that a consumer acknowledges the message; a handler is called, as if
            it were registered for ``*``.

    Raises:
        ValueError: ``unknown`` has another value.
        TypeError: As :meth:`on`, if ``unknown`` is a handler.
    """

    def __init__(self, *, unknown: Unknown | AsyncHandler = "reject") -> None:
        super().__init__(unknown)

    def on(
        self, pattern: str, *, data: Any = None, filter: str | cesql.Expression | None = None
    ) -> Callable[[_AsyncT], _AsyncT]:
        """
        Register the decorated async function for a pattern, and return it unchanged.

        Args:
            pattern: Type of events, or the beginning of types and ``*``.
            data: Type of the data, as for :meth:`ce_nats.DecodedEvent.data_as`; by default the annotation of the
                parameter.
            filter: Expression of CloudEvents SQL. Other events of the pattern are skipped: the handler is not called,
                and a consumer acknowledges them, with the outcome ``filtered``.

        Raises:
            ValueError: The pattern is empty, has ``*`` before its end or a character that types must not contain, or
                has a handler already; ``filter`` is not an expression.
            TypeError: The pattern is not a str; the handler is not async; a parameter cannot be filled; two parameters
                are for the data; ``data=`` is given and no parameter is for it; neither msgspec nor pydantic can read
                the type of the data.
        """
        return self._registration(pattern, filter, data=data)

    def batch(self, pattern: str, *, filter: str | cesql.Expression | None = None) -> Callable[[_AsyncT], _AsyncT]:
        """
        Register the decorated async function for batches of events, and return it unchanged.

            @router.batch("com.example.reading.*")
            async def store(batch: aio.Batch) -> None: ...

            await consumer.run_batches(router)

        It is called with one batch, of the events for which the pattern wins, as by
        :meth:`~ce_nats.aio.PullConsumer.run_batches`. Handlers of :meth:`on` get the other events, one after the other.
        Events of different patterns are handled in another order than that of the stream.

        Args:
            pattern: As for :meth:`on`.
            filter: As for :meth:`on`.

        Raises:
            ValueError: As :meth:`on`.
            TypeError: The pattern is not a str; the handler is not async, or does not take one argument.
        """
        return self._registration(pattern, filter, gets_batch=True)

    async def __call__(self, delivery: HasEvent | Sequence[DecodedEvent]) -> Any:
        if isinstance(delivery, Sequence):
            for call in self._calls(delivery):
                try:
                    await call.handle()
                except Exception as error:
                    if not call.fail(error):
                        raise
            return None
        route = self._find(delivery)
        if route is None:
            return None
        if route.has_data and (resolve := getattr(delivery, "resolve", None)) is not None:
            await resolve()  # data in an object store
        return await route.call(delivery)

    def _check_kind(self, handler: object) -> None:
        if not is_async(handler):
            raise TypeError(
                f"a handler of Router must be an async function (async def), got {name_of(handler)}; functions that "
                "are not async need a SyncRouter and ce_nats.sync"
            )


class SyncRouter(AnyRouter):
    """
    Handler for ``ce_nats.sync`` that calls other handlers, chosen by the type of the event: see :class:`Router`.

        router = SyncRouter()

        @router.on("com.example.order.placed")
        def place(order: Order) -> None: ...

        consumer.run(router)

    Args:
        unknown: As for :class:`Router`.

    Raises:
        ValueError: As :class:`Router`.
        TypeError: As :class:`Router`.
    """

    def __init__(self, *, unknown: Unknown | SyncHandler = "reject") -> None:
        super().__init__(unknown)

    def on(
        self, pattern: str, *, data: Any = None, filter: str | cesql.Expression | None = None
    ) -> Callable[[_SyncT], _SyncT]:
        """
        Register the decorated function, which is not async, for a pattern, and return it unchanged.

        Args:
            pattern: As for :meth:`Router.on`, and so is ``data``.
            data: Type of the data.
            filter: As for :meth:`Router.on`.

        Raises:
            ValueError: As :meth:`Router.on`.
            TypeError: As :meth:`Router.on`; the handler is async.
        """
        return self._registration(pattern, filter, data=data)

    def batch(self, pattern: str, *, filter: str | cesql.Expression | None = None) -> Callable[[_SyncT], _SyncT]:
        """
        Register the decorated function, which is not async, for batches of events: see :meth:`Router.batch`.

        Args:
            pattern: As for :meth:`Router.on`.
            filter: As for :meth:`Router.on`.

        Raises:
            ValueError: As :meth:`Router.on`.
            TypeError: As :meth:`Router.batch`; the handler is async.
        """
        return self._registration(pattern, filter, gets_batch=True)

    def __call__(self, delivery: HasEvent | Sequence[DecodedEvent]) -> Any:
        if isinstance(delivery, Sequence):
            for call in self._calls(delivery):
                try:
                    call.handle()
                except Exception as error:
                    if not call.fail(error):
                        raise
            return None
        route = self._find(delivery)
        if route is None:
            return None
        if route.has_data and (resolve := getattr(delivery, "resolve", None)) is not None:
            resolve()
        return route.call(delivery)

    def _check_kind(self, handler: object) -> None:
        if is_async(handler) or not callable(handler):
            given = name_of(handler)
            raise TypeError(f"a handler of SyncRouter must be a function that is not async, got {given}")


def _passes(route: _Route, delivery: Any) -> bool:
    """Whether an event passes the filter of a route; a consumer reports it otherwise."""
    if route.filter is None or route.filter.passes(delivery.event):
        return True
    note = getattr(delivery, "_note_filtered", None)  # not of a message of a subscription, or a fake
    if note is not None:
        note()
    return False


def _batch_route(handler: Callable[..., Any]) -> _Route:
    """Return the route of a handler of batches."""
    try:
        inspect.signature(handler).bind(None)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name_of(handler)} must take one argument, the batch: {error}") from error
    return _Route(handler, [], {}, gets_batch=True)


def _route(handler: Callable[..., Any], data: Any) -> _Route:
    """Return the route of a handler."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except ValueError as error:
        raise TypeError(f"{name_of(handler)} must have a signature: {error}") from error
    route = _Route(handler, [], {})
    data_parameter = ""
    for parameter in parameters:
        if parameter.kind in _NOT_PASSED:
            continue
        annotation = _resolved(parameter, handler)
        is_data = data is not None and annotation is data
        source = None if is_data else _event_or_delivery(parameter.name, annotation)
        if source is None:
            has_default = parameter.default is not parameter.empty
            if has_default and not is_data and parameter.kind is not parameter.POSITIONAL_ONLY:
                continue
            if data_parameter:
                _fail(handler, parameter, f"{data_parameter!r} is the data already")
            data_parameter = parameter.name
            source = partial(_data, _model(handler, parameter, annotation, data))
        if parameter.kind is parameter.POSITIONAL_ONLY:
            route.positional.append(source)
        else:
            route.named[parameter.name] = source
    if data is not None and not data_parameter:
        raise TypeError(f"{name_of(handler)} must have a parameter for the data, because data= has its type")
    return route._replace(has_data=bool(data_parameter))


def _resolved(parameter: inspect.Parameter, handler: object) -> Any:
    """Return the annotation of a parameter; a str if it is the name of something that is not defined."""
    if parameter.annotation is parameter.empty:
        return parameter.empty
    names = getattr(inspect.unwrap(_plain(handler)), "__globals__", {})
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return get_type_hints(holder, names, include_extras=True)[parameter.name]
    except Exception:  # evaluating an annotation may raise anything; the name of the parameter may be enough
        return str(parameter.annotation)


def _plain(handler: Any) -> Any:
    """Return the function of a bound method, a partial or an object with ``__call__``."""
    while not hasattr(handler, "__globals__"):
        inner = getattr(handler, "func", None) or getattr(handler, "__func__", None)
        if inner is None:
            call = getattr(type(handler), "__call__", None)  # noqa: B004 - its globals, not whether it exists
            return handler if call is None else call
        handler = inner
    return handler


def _event_or_delivery(name: str, annotation: Any) -> _Source | None:
    """Return the source of a parameter for the event or the delivery; None for any other."""
    if isinstance(annotation, str) or any(annotation is one for one in _UNINFORMATIVE):
        return {"event": _event, "delivery": _delivery}.get(name)
    members = [one for one in get_args(annotation) if one is not NoneType]
    kind = members[0] if len(members) == 1 and NoneType in get_args(annotation) else annotation
    if kind is EventLike or kind in DecodedEvent.__mro__:
        return _event
    return _delivery if isinstance(getattr(kind, "event", None), property) else None


def _model(handler: object, parameter: inspect.Parameter, annotation: Any, data: Any) -> Any:
    """Return the type of the data: ``data=``, or the annotation of the parameter."""
    model = annotation if data is None else data
    if model is parameter.empty:
        _fail(handler, parameter, "it has no annotation, and data= is not given")
    if isinstance(model, str):
        _fail(handler, parameter, f"its annotation {model!r} cannot be resolved, and data= is not given")
    try:
        models.check_model(model)
    except TypeError as error:
        raise TypeError(f"parameter {parameter.name!r} of {name_of(handler)}: {error}") from error
    return model


def _fail(handler: object, parameter: inspect.Parameter, reason: str) -> None:
    raise TypeError(f"parameter {parameter.name!r} of {name_of(handler)} cannot be filled: {reason}")


def _event(delivery: HasEvent) -> DecodedEvent:
    return delivery.event


def _delivery(delivery: HasEvent) -> HasEvent:
    return delivery


def _data(model: Any, delivery: HasEvent) -> Any:
    return delivery.event.data_as(model)
