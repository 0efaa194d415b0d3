"""
Distributed Tracing: W3C Trace Context in attributes and in headers, and OpenTelemetry's current span.
"""

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span

from ce_nats import EncodeError
from ce_nats.extensions.tracing import TraceContext, current_trace, trace_of_event, trace_of_headers
from tests.support.strategies import plain_event
from tests.support.tables import each

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b9c7c989f97918e1"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_fields_of_a_trace_context() -> None:
    """And the attributes or headers for it."""
    context = TraceContext(PARENT, "rojo=00f067aa0ba902b7,congo@x=t61rcWkgMzE")
    assert (context.trace_id, context.span_id, context.is_sampled) == (TRACE, SPAN, True)
    assert context.fields() == {"traceparent": PARENT, "tracestate": "rojo=00f067aa0ba902b7,congo@x=t61rcWkgMzE"}
    assert TraceContext(f"00-{TRACE}-{SPAN}-02").is_sampled is False
    assert TraceContext(PARENT).fields() == {"traceparent": PARENT}


@each(("flags", "is_sampled"), [("00", False), ("01", True), ("fe", False), ("0f", True), ("10", False)])
def test_sampled_is_the_lowest_bit_of_the_flags(flags: str, is_sampled: bool) -> None:
    """W3C Trace Context 3.2.2.5: other flags may have a meaning later."""
    assert TraceContext(f"00-{TRACE}-{SPAN}-{flags}").is_sampled is is_sampled


@each(
    "traceparent",
    [
        *("", "00", PARENT.upper(), PARENT[:-1], PARENT + "0", PARENT + "-x", PARENT + "\n", f" {PARENT}"),
        *(f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", None, 5),
    ],
)
def test_invalid_traceparents(traceparent: Any) -> None:
    """An error in TraceContext; None in a received event."""
    with pytest.raises(EncodeError) as info:
        TraceContext(traceparent)
    assert (info.value.code, info.value.attribute) == ("invalid-trace-context", "traceparent")
    assert trace_of_event(plain_event(traceparent=traceparent)) is None


def test_later_versions_may_have_more_fields() -> None:
    """W3C Trace Context 4.3: fields after the flags."""
    context = TraceContext(f"01-{TRACE}-{SPAN}-01-what-ever")
    assert (context.trace_id, context.span_id, context.is_sampled) == (TRACE, SPAN, True)


@each(
    "tracestate",
    [
        *("a", "a=", "=b", "A=b", "a=b,a=c", "a=b=c", "a=\u00e9", "a@b@c=d", "a" * 257 + "=b", "a=" + "b" * 257),
        *(",".join(f"k{number}=v" for number in range(33)), None, 5),
    ],
)
def test_invalid_tracestates(tracestate: Any) -> None:
    """An error in TraceContext; ignored in a received event, which keeps the trace."""
    with pytest.raises(EncodeError) as info:
        TraceContext(PARENT, tracestate)
    assert (info.value.code, info.value.attribute) == ("invalid-trace-context", "tracestate")
    event = plain_event(traceparent=PARENT, tracestate=tracestate)
    assert trace_of_event(event) == TraceContext(PARENT)


@each(
    "tracestate",
    [
        *("", "a=b", "a=b , ,\tc=d", "1a@b=x y", "a=" + "b" * 256, "a_-*/0=!"),
        ",".join(f"k{number}=v" for number in range(32)),
    ],
)
def test_valid_tracestates(tracestate: str) -> None:
    """Empty members and white space around commas are legal; the text is kept."""
    assert trace_of_event(plain_event(traceparent=PARENT, tracestate=tracestate)) == TraceContext(PARENT, tracestate)


@each(
    ("headers", "context"),
    [
        (None, None),
        ({"ce-traceparent": PARENT}, None),
        ({"TraceParent": PARENT}, TraceContext(PARENT)),
        ([("traceparent", PARENT), ("tracestate", "a=b"), ("tracestate", "c=d")], TraceContext(PARENT, "a=b,c=d")),
        ({"traceparent": PARENT, "TraceState": "a=b"}, TraceContext(PARENT, "a=b")),
        ([("traceparent", PARENT), ("traceparent", PARENT)], None),
        ({"traceparent": 5}, None),
    ],
)
def test_trace_of_headers(headers: Any, context: TraceContext | None) -> None:
    """NATS headers without ``ce-``, in any case; duplicates are ignored."""
    assert trace_of_headers(headers) == context


def test_current_span() -> None:
    """Of OpenTelemetry's SDK, and of a remote span with its state."""
    assert current_trace() is None
    with TracerProvider().get_tracer("tests").start_as_current_span("work") as span:
        context = current_trace()
        assert context is not None
        assert (int(context.trace_id, 16), int(context.span_id, 16)) == (
            span.get_span_context().trace_id,
            span.get_span_context().span_id,
        )
        assert context.is_sampled
    state = TraceState([("rojo", "1"), ("congo", "2")])
    remote = SpanContext(int(TRACE, 16), int(SPAN, 16), is_remote=True, trace_flags=TraceFlags(0), trace_state=state)
    with use_span(NonRecordingSpan(remote)):
        assert current_trace() == TraceContext(f"00-{TRACE}-{SPAN}-00", "rojo=1,congo=2")
    assert current_trace() is None


def test_opentelemetry_is_optional() -> None:
    """It is not imported."""
    code = (
        "import sys; from ce_nats.extensions.tracing import current_trace; import ce_nats.aio;"
        "assert current_trace() is None;"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
