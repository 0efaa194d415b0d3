"""
Trace contexts in events and headers: the Distributed Tracing extension of CloudEvents, and W3C Trace Context.

The extension attributes ``traceparent`` and ``tracestate`` are the trace context in which an event was created;
intermediaries do not change them. NATS headers of the same names, without ``ce-``, are the trace context of the last
hop. The current span is read from OpenTelemetry if the program uses it; OpenTelemetry is not required.
``ce_nats.otel`` creates spans.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from ..codec.event import EventLike, attributes_and_data
from ..errors import DecodeError, EncodeError, ErrorCode, preview
from ..message import Headers, HeadersLike

__all__ = ["TraceContext", "current_trace", "trace_of_event", "trace_of_headers", "trace_of_span"]

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

# W3C Trace Context 3.2: version, trace-id, parent-id, trace-flags. Later versions than 00 may have further fields.
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
    A trace context of W3C Trace Context.

    Args:
        traceparent: Version, trace-id, parent-id and flags, as in W3C Trace Context 3.2.
        tracestate: Data of tracing systems, as in 3.3, or ``""``.

    Raises:
        EncodeError: ``invalid-trace-context``.
    """

    traceparent: str
    tracestate: str = ""

    def __post_init__(self) -> None:
        if not _is_traceparent(self.traceparent):
            raise EncodeError(
                ErrorCode.INVALID_TRACE_CONTEXT,
                f"traceparent must be that of W3C Trace Context, got {preview(self.traceparent)}",
                attribute=TRACEPARENT,
            )
        if not _is_tracestate(self.tracestate):
            raise EncodeError(
                ErrorCode.INVALID_TRACE_CONTEXT,
                f"tracestate must be that of W3C Trace Context, got {preview(self.tracestate)}",
                attribute=TRACESTATE,
            )

    @property
    def trace_id(self) -> str:
        """The trace-id: 32 hexadecimal digits."""
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """The parent-id: 16 hexadecimal digits."""
        return self.traceparent[36:52]

    @property
    def is_sampled(self) -> bool:
        return bool(int(self.traceparent[53:55], 16) & _SAMPLED)

    def fields(self) -> dict[str, str]:
        """Return ``traceparent`` and, if not empty, ``tracestate``, for use as extension attributes or as headers."""
        return {TRACEPARENT: self.traceparent, **({TRACESTATE: self.tracestate} if self.tracestate else {})}


def trace_of_event(event: EventLike) -> TraceContext | None:
    """
    Return the trace context in which an event was created, from its extension attributes.

    An invalid traceparent returns None, and an invalid tracestate is ignored, as W3C Trace Context requires.

    Raises:
        EncodeError: ``invalid-message`` if ``event`` is not an event.
    """
    attributes, _ = attributes_and_data(event)
    return _lenient(attributes.get(TRACEPARENT), attributes.get(TRACESTATE))


def trace_of_headers(headers: HeadersLike) -> TraceContext | None:
    """Return the trace context of a message's sender, from its headers. Invalid values as in :func:`trace_of_event`."""
    try:
        known = Headers(headers)
    except DecodeError:
        return None
    parents = known.values(TRACEPARENT, ignore_case=True)
    return _lenient(parents[0] if len(parents) == 1 else None, ",".join(known.values(TRACESTATE, ignore_case=True)))


def current_trace() -> TraceContext | None:
    """Return the trace context of OpenTelemetry's current span; None without one, or without OpenTelemetry."""
    # Not imported: a program that has a span has imported it already.
    opentelemetry = sys.modules.get("opentelemetry.trace")
    if opentelemetry is None:
        return None
    return trace_of_span(opentelemetry.get_current_span())


def trace_of_span(span: Any) -> TraceContext | None:
    """Return the trace context of an OpenTelemetry span; None if it has no id, as all spans without an SDK."""
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
