"""
Run conformance cases on ce_nats: one function per operation.

Each function accepts the ``input`` of a case and returns a result in the form of ``expected``; see
spec-fixtures/README.md. It converts the input to Python values, calls ce_nats, and converts the result back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timezone
from types import SimpleNamespace
from typing import Any, Final

from .. import cesql
from ..codec import percent
from ..codec.attributes import canonical
from ..codec.binary import Dialect
from ..codec.binding import from_nats_message, to_nats_message
from ..codec.mode import ContentMode, detect_mode
from ..codec.timestamp import Timestamp
from ..errors import CeNatsError
from ..message import Headers
from ..redelivery import Action, Backoff, Breaker, BreakerState, Outcome, RetryPolicy, decide
from ..wire import nats
from ._cases import Answer, octets, spell, text
from ._events import Fields, Input, SpelledEvent, distinct, event_fields, extension_types
from ._iggy import IGGY_OPERATIONS
from ._protobuf import PROTOBUF_OPERATIONS
from ._stan import STAN_OPERATIONS


def answer(op: str, given: Input) -> Answer:
    """
    Run a case on ce_nats.

    Args:
        op: One of :data:`OPERATIONS`.
        given: Input of the case.

    Returns:
        ``{"result": {...}}``, ``{"error": code}`` for a CeNatsError, or ``{"skipped": reason}`` if the extra that the
        operation needs is not installed. Other exceptions of ce_nats are not caught.

    Raises:
        KeyError: The operation does not exist, or a field of the input is missing.
    """
    operation = OPERATIONS[op]
    try:
        return {"result": operation(given)}
    except CeNatsError as error:
        return {"error": str(error.code)}
    except ImportError as missing:
        return {"skipped": str(missing)}


def answer_lines(lines: Iterable[str | bytes]) -> Iterator[str]:
    """
    Answer lines of JSON as the implementation under test; spec-fixtures/README.md describes the protocol.

    For an unexpected exception the answer has ``crashed``, which is not valid and counts as a failure.
    """
    for line in lines:
        case = json.loads(line)
        if case["op"] not in OPERATIONS:
            got: Answer = {"skipped": f"ce_nats has no operation {case['op']}"}
        else:
            try:
                got = answer(case["op"], case["input"])
            except Exception as error:
                got = {"crashed": f"{type(error).__name__}: {error}"}
        yield json.dumps({"id": case["id"], **got})


# --- Text and attributes --------------------------------------------------------------------------------------------


def _percent_encode(given: Input) -> Fields:
    return {"value": percent.encode(text(given["text"]))}


def _percent_decode(given: Input) -> Fields:
    return {"text": percent.decode(text(given["value"]))}


def _canonical(given: Input) -> Fields:
    value = given["value"]
    if given["type"] == "Binary":
        value = octets({"base64": value})
    elif given["type"] == "Timestamp":
        value = Timestamp(text(value))
    elif isinstance(value, dict) and "utf16" in value:
        value = text(value)
    return {"text": canonical(value)}


def _timestamp(given: Input) -> Fields:
    timestamp = Timestamp(text(given["text"]))
    utc = timestamp.astimezone(timezone.utc)
    return {"text": str(timestamp), "instant": f"{utc:%Y-%m-%dT%H:%M:%S.%f}Z".rjust(27, "0")}


# --- Messages -------------------------------------------------------------------------------------------------------


def _message(given: Input) -> SimpleNamespace:
    headers = given.get("headers")
    return SimpleNamespace(
        data=octets(given.get("data") or {"text": ""}), headers=None if headers is None else _pairs(headers)
    )


def _pairs(headers: Any) -> list[tuple[str, str]]:
    return [(text(name), text(value)) for name, value in headers]


def _spelled_pairs(headers: Headers) -> list[list[str]]:
    return [[name, value] for name, value in headers.items()]


def _detect_mode(given: Input) -> Fields:
    return {"mode": str(detect_mode(_message(given)))}


def _from_nats_message(given: Input) -> Fields:
    event = from_nats_message(
        _message(given),
        mode=ContentMode(given["mode"]) if "mode" in given else None,
        dialect=Dialect(given.get("dialect", "spec")),
        parse_data=given.get("parse_data", True),
        extension_types=extension_types(given),
    )
    return event_fields(event)


def _to_nats_message(given: Input) -> Fields:
    mode = ContentMode(given.get("mode", "binary"))
    message = to_nats_message(
        SpelledEvent(given["event"]["attributes"], given["event"]["data"]),
        text(given.get("subject", "")),
        mode=mode,
        reply=text(given.get("reply", "")),
        headers=None if given.get("headers") is None else _pairs(given["headers"]),
    )
    headers = _spelled_pairs(message.headers)
    if mode is ContentMode.BINARY:
        return {"headers": headers, "data": spell(message.data)}
    return {"headers": headers, "json": json.loads(message.data.decode("utf-8"), object_pairs_hook=distinct)}


# --- Headers --------------------------------------------------------------------------------------------------------


def _headers(given: Input) -> tuple[Headers, str, bool]:
    return Headers(_pairs(given["headers"] or [])), text(given["name"]), given.get("ignore_case", False)


def _headers_get(given: Input) -> Fields:
    headers, name, ignore_case = _headers(given)
    return {"value": headers.get(name, ignore_case=ignore_case)}


def _headers_values(given: Input) -> Fields:
    headers, name, ignore_case = _headers(given)
    return {"values": headers.values(name, ignore_case=ignore_case)}


def _headers_append(given: Input) -> Fields:
    headers, name, ignore_case = _headers(given)
    headers.append(name, text(given["value"]), ignore_case=ignore_case)
    return {"headers": _spelled_pairs(headers)}


def _headers_set(given: Input) -> Fields:
    headers, name, ignore_case = _headers(given)
    headers.set(name, text(given["value"]), ignore_case=ignore_case)
    return {"headers": _spelled_pairs(headers)}


def _headers_delete(given: Input) -> Fields:
    headers, name, ignore_case = _headers(given)
    headers.delete(name, ignore_case=ignore_case)
    return {"headers": _spelled_pairs(headers)}


# --- Bytes ----------------------------------------------------------------------------------------------------------


def _encode_header_block(given: Input) -> Fields:
    return {"block": spell(nats.encode_header_block(_pairs(given["headers"] or [])))}


def _decode_header_block(given: Input) -> Fields:
    block = nats.decode_header_block(octets(given["block"]))
    return {"headers": _spelled_pairs(block.headers), "status": _status(block.status)}


def _status(status: Any) -> Fields | None:
    return None if status is None else {"code": status.code, "description": status.description}


def _encode_hpub(given: Input) -> Fields:
    frame = nats.encode_hpub(
        text(given["subject"]),
        octets(given["payload"]),
        _pairs(given["headers"] or []),
        reply=text(given.get("reply") or ""),
    )
    return {"frame": spell(frame)}


def _encode_hmsg(given: Input) -> Fields:
    frame = nats.encode_hmsg(
        text(given["subject"]),
        given["sid"],
        octets(given["payload"]),
        _pairs(given["headers"] or []),
        reply=text(given.get("reply") or ""),
    )
    return {"frame": spell(frame)}


def _decode_frames(given: Input) -> Fields:
    return {"frames": [_frame(frame) for frame in nats.decode_frames(octets(given["data"]))]}


def _frame(frame: Any) -> Fields:
    return {
        "op": str(frame.op),
        "subject": frame.subject,
        "sid": frame.sid,
        "reply": frame.reply,
        "headers": None if frame.headers is None else _spelled_pairs(frame.headers),
        "status": _status(frame.status),
        "payload": spell(frame.payload),
        "header_bytes": frame.header_bytes,
        "total_bytes": frame.total_bytes,
    }


# --- Deliveries -----------------------------------------------------------------------------------------------------


def _decide(given: Input) -> Fields:
    policy = RetryPolicy(given["max_deliveries"], _backoff(given["backoff"]), given.get("max_unfinished"))
    decision = decide(Outcome(given["outcome"]), given["deliveries"], policy)
    fields: Fields = {"action": str(decision.action)}
    if decision.action is Action.RETRY:
        fields["delay_ms"] = round(decision.delay * 1000)
    if decision.reason is not None:
        fields["reason"] = str(decision.reason)
    return fields


def _breaker(given: Input) -> Fields:
    breaker = Breaker(given["pause_after"])
    return {"steps": [_breaker_step(breaker, step) for step in given["steps"]]}


def _breaker_step(breaker: Breaker, step: Input) -> Fields:
    """Do the same with each event of a step, and return the state after the last one."""
    now, retry_after = step["at_ms"] / 1000, step.get("retry_after_ms")
    blame = None
    for event in step.get("events", [""]):
        if step["do"] == "begin":
            breaker.begin(event)
        elif step["do"] == "succeed":
            breaker.succeed()
        elif step["do"] == "end":
            breaker.end(event)
        else:
            seconds = None if retry_after is None else retry_after / 1000
            blame = breaker.fail(event, now, is_declared=step["do"] == "unavailable", retry_after=seconds)
    fields: Fields = {"state": str(breaker.state)}
    wait = breaker.wait(now)
    if breaker.state is BreakerState.OPEN and wait is not None:
        fields["wait_ms"] = round(wait * 1000)
    return fields if blame is None else {**fields, "blame": str(blame)}


def _backoff(given: Any) -> Backoff | list[float]:
    if isinstance(given, list):
        return [delay / 1000 for delay in given]
    return Backoff(given["first_ms"] / 1000, given["factor"], given["most_ms"] / 1000)


# --- Filters --------------------------------------------------------------------------------------------------------


def _evaluate(given: Input) -> Fields:
    tagged = {name: {"type": "String", "value": value} for name, value in _FILTERED_EVENT.items()}
    event = SpelledEvent(tagged | given.get("attributes", {}), {"absent": True})
    try:
        expression = cesql.compile(text(given["expression"]))
    except cesql.ParseError:
        return {"errors": ["parse"]}
    result = expression.evaluate(event, fail_fast=given.get("mode") != "complete")
    return {"result": result.value, "errors": [error.kind for error in result.errors]}


_FILTERED_EVENT: Final = {"specversion": "1.0", "id": "1", "source": "/eu/x", "type": "com.example.order"}

OPERATIONS: Final[Mapping[str, Callable[[Input], Fields]]] = {
    **PROTOBUF_OPERATIONS,
    **STAN_OPERATIONS,
    "percent.encode": _percent_encode,
    "percent.decode": _percent_decode,
    "attributes.canonical": _canonical,
    "attributes.timestamp": _timestamp,
    "detect_mode": _detect_mode,
    "from_nats_message": _from_nats_message,
    "to_nats_message": _to_nats_message,
    "headers.get": _headers_get,
    "headers.values": _headers_values,
    "headers.append": _headers_append,
    "headers.set": _headers_set,
    "headers.delete": _headers_delete,
    "wire.nats.encode_header_block": _encode_header_block,
    "wire.nats.decode_header_block": _decode_header_block,
    "wire.nats.encode_hpub": _encode_hpub,
    "wire.nats.encode_hmsg": _encode_hmsg,
    "wire.nats.decode_frames": _decode_frames,
    "deadletter.decide": _decide,
    "deadletter.breaker": _breaker,
    "cesql.evaluate": _evaluate,
    **IGGY_OPERATIONS,
}
