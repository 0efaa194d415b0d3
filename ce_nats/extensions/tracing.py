"""
Traces that go through events: the Distributed Tracing extension of CloudEvents, and W3C Trace Context.

The extension attributes ``traceparent`` and ``tracestate`` tell where the trace of an event began, and stay as they
are on the way. NATS headers of the same names, without ``ce-``, tell of the last hop. OpenTelemetry is asked for the
current span where a program uses it; nothing here needs it. ``ce_nats.otel`` makes spans.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from ..codec.event import Event, attributes_and_data
from ..errors import DecodeError, EncodeError, ErrorCode, preview
from ..message import Headers, HeadersLike

__all__ = ["TraceContext", "current_trace", "trace_of_event", "trace_of_headers", "trace_of_span"]

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

# W3C Trace Context 3.2: version, trace-id, parent-id, trace-flags. Version 00 ends there, later ones may go on.
_TRACEPARENT: Final = re.compile(
    "(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?"
)
# 3.3.1.3: list-members, keys of one system or "tenant@system", values without comma and equals sign.
_KEY: Final = "[a-z0-9][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13}"
_MEMBER: Final = re.compile(f"({_KEY})=[ -+\\--<>-~]{{0,255}}[!-+\\--<>-~]")
_MAX_MEMBERS: Final = 32
_SAMPLED: Final = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """
    A place in a trace.

    Args:
        traceparent: Version, trace-id, parent-id and flags, as in W3C Trace Context 3.2.
        tracestate: What tracing systems added, as in 3.3; ``""`` for nothing.

    Raises:
        EncodeError: ``invalid-trace-context``.
    """

    traceparent: str
    tracestate: str = ""

    def __post_init__(self) -> None:
        if not _is_traceparent(self.traceparent):
            raise EncodeError(
                ErrorCode.INVALID_TRACE_CONTEXT,
                f"{preview(self.traceparent)} is not a traceparent of W3C Trace Context",
                attribute=TRACEPARENT,
            )
        if not _is_tracestate(self.tracestate):
            raise EncodeError(
                ErrorCode.INVALID_TRACE_CONTEXT,
                f"{preview(self.tracestate)} is not a tracestate of W3C Trace Context",
                attribute=TRACESTATE,
            )

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """The parent-id: 16 hexadecimal digits."""
        return self.traceparent[36:52]

    @property
    def is_sampled(self) -> bool:
        return bool(int(self.traceparent[53:55], 16) & _SAMPLED)

    def fields(self) -> dict[str, str]:
        """``traceparent`` and, where there is one, ``tracestate``: extension attributes, and headers just as well."""
        return {TRACEPARENT: self.traceparent, **({TRACESTATE: self.tracestate} if self.tracestate else {})}


def trace_of_event(event: Event) -> TraceContext | None:
    """
    Where an event's trace began, from its extension attributes.

    What is not a trace context counts as none, and a bad tracestate is left out, as W3C Trace Context wants it.

    Raises:
        EncodeError: ``invalid-message`` where it is not an event.
    """
    attributes, _ = attributes_and_data(event)
    return _lenient(attributes.get(TRACEPARENT), attributes.get(TRACESTATE))


def trace_of_headers(headers: HeadersLike) -> TraceContext | None:
    """Where a message was sent from, by its headers ``traceparent`` and ``tracestate``; leniently, as with events."""
    try:
        known = Headers(headers)
    except DecodeError:
        return None
    parents = known.values(TRACEPARENT, ignore_case=True)
    return _lenient(parents[0] if len(parents) == 1 else None, ",".join(known.values(TRACESTATE, ignore_case=True)))


def current_trace() -> TraceContext | None:
    """The current span of OpenTelemetry; None without one, or in a program that does not use OpenTelemetry."""
    # Not imported: in a program with a span, somebody has done so.
    opentelemetry = sys.modules.get("opentelemetry.trace")
    if opentelemetry is None:
        return None
    return trace_of_span(opentelemetry.get_current_span())


def trace_of_span(span: Any) -> TraceContext | None:
    """A span of OpenTelemetry; None where it is a span without an id, which is what there is without an SDK."""
    context = span.get_span_context()
    if not context.is_valid:
        return None
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return _lenient(parent, context.trace_state.to_header())


def _lenient(traceparent: object, tracestate: object) -> TraceContext | None:
    if not _is_traceparent(traceparent):
        return None
    return TraceContext(traceparent, tracestate if _is_tracestate(tracestate) else "")


def _is_traceparent(text: object) -> TypeGuard[str]:
    found = _TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    return found is not None and (found[1] != "00" or found[5] is None)


def _is_tracestate(text: object) -> TypeGuard[str]:
    if not isinstance(text, str):
        return False
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    keys = [found[1] for member in members if (found := _MEMBER.fullmatch(member))]
    return len(members) <= _MAX_MEMBERS and len(set(keys)) == len(members)
