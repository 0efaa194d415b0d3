"""
Answer conformance cases with the cloudevents package: a program for --exec (see spec-fixtures/README.md).

    python answer.py DIRECTORY    # of the package

The package has no NATS binding. Its JSON format is used for structured events, its HTTP binding for binary ones, with
headers in a dict as in nats-py. Nothing is corrected: values are converted to Python objects, the package is called,
and its result is converted back.
"""

import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

sys.path.insert(0, sys.argv[1])

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings import http
from cloudevents.core.v1.event import CloudEvent
from dateutil.parser import isoparse  # type: ignore[import-untyped]

Input = Mapping[str, Any]
Fields = dict[str, Any]


class Skipped(Exception):  # noqa: N818 - not an error
    """The case cannot be run with the package; the text is the reason."""


READERS = {None: http.from_http_event, "binary": http.from_binary_event, "structured": http.from_structured_event}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        given = {"id": asked["id"], **answer(asked["op"], asked["input"])}
        try:
            printed = json.dumps(given, allow_nan=False)
        except ValueError as error:
            printed = json.dumps({"id": asked["id"], "crashed": str(error)})
        print(printed, flush=True)


def answer(op: str, given: Input) -> Fields:
    operation = OPERATIONS.get(op)
    if operation is None:
        return {"skipped": f"cloudevents has no {op}"}
    try:
        return {"result": operation(given)}
    except Skipped as reason:
        return {"skipped": str(reason)}
    except Exception as error:
        return {"error": repr(error)}


# --- From a message -------------------------------------------------------------------------------------------------


def from_message(given: Input) -> Fields:
    if "extension_types" in given or given.get("parse_data") is False or given.get("dialect") == "sdk-go":
        raise Skipped("cloudevents has no such option")
    # As in nats-py: one value per name, the last one, without outer white space.
    headers = {text(name): text(value).strip() for name, value in given["headers"] or []}
    message = http.HTTPMessage(headers, octets(given.get("data") or {"text": ""}))
    read = READERS[given.get("mode")]
    event = read(message)
    is_binary = given.get("mode") != "structured" and any(name.lower().startswith("ce-") for name in headers)
    attributes = {name: tagged(name, value) for name, value in event.get_attributes().items() if value is not None}
    return {"attributes": attributes, "data": data_of(event, is_binary)}


def tagged(name: str, value: object) -> Fields:
    if isinstance(value, bool):
        return {"type": "Boolean", "value": str(value).lower()}
    if isinstance(value, int):
        return {"type": "Integer", "value": str(value)}
    if isinstance(value, datetime):
        # As encoded by the package's JSON format.
        text = value.isoformat()
        return {"type": "Timestamp", "value": text[:-6] + "Z" if text.endswith("+00:00") else text}
    return {"type": "String", "value": value if isinstance(value, str) else json.dumps(value)}


def data_of(event: BaseCloudEvent, is_binary: bool) -> Fields:
    """Return the data in the form for its type; a value of another form is returned unchanged."""
    data = event.get_data()
    kind = data_kind(event.get_datacontenttype(), is_binary)
    if data is None:
        return {"absent": True}
    if isinstance(data, bytes):
        try:
            return {"text": data.decode()} if kind == "text" else {"base64": b64encode(data).decode()}
        except UnicodeDecodeError:
            return {"base64": b64encode(data).decode()}
    if isinstance(data, str) and kind == "bytes":
        return {"base64": b64encode(data.encode()).decode()}
    return {"text" if isinstance(data, str) and kind == "text" else "json": data}


def data_kind(content_type: object, is_binary: bool) -> str:
    if not isinstance(content_type, str):
        return "bytes" if is_binary else "json"
    media_type = content_type.split(";")[0].strip().lower()
    if media_type in ("application/json", "text/json") or media_type.endswith("+json"):
        return "json"
    is_text = media_type.startswith("text/") or media_type == "application/xml" or media_type.endswith("+xml")
    return "text" if is_text else "bytes"


# --- To a message ---------------------------------------------------------------------------------------------------


def to_message(given: Input) -> Fields:
    if given.keys() & {"subject", "reply", "headers"}:
        raise Skipped("cloudevents has no such option")
    spelled = given["event"]
    attributes = {name: native(name, value) for name, value in spelled["attributes"].items()}
    event = CloudEvent(attributes, payload(spelled["data"]))
    if given.get("mode") == "structured":
        message = http.to_structured_event(event)
        return {"headers": list(message.headers.items()), "json": json.loads(message.body)}
    message = http.to_binary_event(event)
    return {"headers": list(message.headers.items()), "data": {"base64": b64encode(message.body).decode()}}


def native(name: str, attribute: Input) -> object:
    if "native" in attribute:
        return attribute["native"]
    kind, value = attribute["type"], text(attribute["value"])
    if kind == "Boolean":
        return value == "true"
    if kind == "Integer":
        return int(value)
    if kind == "Binary":
        return b64decode(value)
    return isoparse(value) if kind == "Timestamp" or name == "time" else value


def payload(data: Input) -> Any:
    if "absent" in data:
        return None
    if "json" in data:
        return data["json"]
    return text(data["text"]) if "text" in data else octets(data)


# --- Notations ------------------------------------------------------------------------------------------------------


def text(spelled: Any) -> str:
    if isinstance(spelled, str):
        return spelled
    return bytes.fromhex(spelled["utf16"]).decode("utf-16-be", "surrogatepass")


def octets(spelled: Input) -> bytes:
    return b64decode(spelled["base64"]) if "base64" in spelled else text(spelled["text"]).encode()


OPERATIONS: Mapping[str, Callable[[Input], Fields]] = {
    "from_nats_message": from_message,
    "to_nats_message": to_message,
}

if __name__ == "__main__":
    main()
