"""Messages as other programs send them over NATS, as bytes, and their decoded form. All data is invented."""

import json
from email.parser import BytesParser
from types import SimpleNamespace
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg

from ce_nats import ContentMode, DecodeError, Dialect, Headers, detect_mode, from_nats_message, to_nats_message
from ce_nats.wire.nats import decode_header_block, encode_header_block
from tests.support.strategies import binary_message, plain_event, refused
from tests.support.tables import each

ENVELOPE = (
    '{"specversion":"1.0","id":"order 7","source":"/shop/%C3%A9t%C3%A9?q=x y","type":"com.example.order.placed",'
    '"subject":"Crème 50% \\"brûlée\\" 🍮","datacontenttype":"application/json",'
    '"time":"2024-02-29T22:10:11.123456789Z",'
    '"data":{"total":12.5},"exbin":"AAEC/w==","exbool":true,"exint":42,"extime":"2024-02-29T00:00:00.000000006Z"}'
).encode()


def received(block: bytes, payload: bytes = b"") -> Any:
    """Return a message with these header bytes after ``NATS/1.0``, with LF for CRLF."""
    headers = decode_header_block(b"NATS/1.0\n%b\n".replace(b"\n", b"\r\n") % block.replace(b"\n", b"\r\n")).headers
    return SimpleNamespace(headers=headers, data=payload)


# --- Other implementations ------------------------------------------------------------------------------------------


def test_sdk_go_structured_without_headers() -> None:
    """sdk-go over core NATS sends the JSON event without any header."""
    event = from_nats_message(SimpleNamespace(headers=None, data=ENVELOPE))
    assert event.get_source() == "/shop/%C3%A9t%C3%A9?q=x y"
    assert event.get_subject() == 'Crème 50% "brûlée" 🍮'
    assert str(event.get_time()) == "2024-02-29T22:10:11.123456789Z"
    assert event.get_data() == {"total": 12.5}
    extensions = [event.get_extension(name) for name in ("exbin", "exbool", "exint", "extime")]
    assert extensions == ["AAEC/w==", True, 42, "2024-02-29T00:00:00.000000006Z"]


SDK_GO_BINARY = (
    'ce-id: order 7\nce-datacontenttype: application/json\nce-subject: Crème 50% "brûlée" 🍮\n'
    "ce-time: 2024-02-29T23:10:11.123456789+01:00\nce-exbool: true\nce-exint: 42\n"
    "ce-source: /shop/%C3%A9t%C3%A9?q=x y\nce-specversion: 1.0\nce-type: com.example.order.placed\n"
    "ce-extime: 2024-02-29T00:00:00.000000006Z\nce-exbin: [0 1 2 255]\n"
).encode()


def test_sdk_go_binary_in_its_dialect() -> None:
    """Values are not percent-decoded: otherwise source would differ from that of the structured event."""
    message = received(SDK_GO_BINARY, b'{"total":12.5}')
    event = from_nats_message(message, dialect=Dialect.SDK_GO, extension_types={"exint": int, "exbool": bool})
    structured = from_nats_message(SimpleNamespace(headers=None, data=ENVELOPE))
    for name in ("id", "source", "type", "subject", "exint", "exbool", "extime"):
        assert event.get_attributes()[name] == structured.get_attributes()[name]
    assert event.get_time() == structured.get_time()
    assert str(event.get_time()) == "2024-02-29T23:10:11.123456789+01:00"
    assert event.get_data() == structured.get_data()
    assert event.get_extension("exbin") == "[0 1 2 255]"


def test_sdk_go_binary_in_the_spec_dialect() -> None:
    """The binding rejects the unescaped percent sign, and the error names its position."""
    error = refused(DecodeError, "invalid-percent-escape", from_nats_message, received(SDK_GO_BINARY, b"{}"))
    assert (error.attribute, error.header) == ("subject", "ce-subject")


def test_sdk_go_binary_without_data() -> None:
    """Four headers and an empty payload are an event without data and time."""
    event = from_nats_message(received(b"ce-id: 8\nce-source: s\nce-specversion: 1.0\nce-type: t\n"))
    assert list(event.get_attributes()) == ["id", "source", "specversion", "type"]
    assert (event.get_data(), event.has_data) == (None, False)


def test_knative_argo_and_dapr() -> None:
    """Headers without a CloudEvents name: the payload is the event."""
    event = from_nats_message(received(b"Nats-Msg-Id: order 7\n", ENVELOPE))
    assert event.get_id() == "order 7"


@each(
    "block",
    [
        b"Nats-Stream: T2\nNats-Subject: t2.a\nNats-Sequence: 1\nNats-Time-Stamp: 2024-03-01T00:00:00Z\n"
        b"Nats-Last-Sequence: 0\n",
        b"Nats-Stream: T2\nNats-Subject: t2.a\nNats-Sequence: 1\nNats-Time-Stamp: 2024-03-01T00:00:00Z\n",
        b"Nats-Stream-Source: T2 1 > > t2.a k3Yx9Qwz\n",
    ],
)
def test_headers_that_a_stream_adds(block: bytes) -> None:
    """JetStream adds headers to a structured event without headers."""
    assert from_nats_message(received(block, ENVELOPE)).get_id() == "order 7"


def test_headers_only_consumer() -> None:
    """A binary event has no data; a structured event is empty, which is an error that can be recognized."""
    block = b"ce-id: 8\nce-source: s\nce-specversion: 1.0\nce-type: t\nNats-Msg-Size: 7\n"
    assert from_nats_message(received(block)).get_id() == "8"
    error = refused(DecodeError, "not-a-cloudevent", from_nats_message, received(b"Nats-Msg-Size: 55\n"))
    assert "not delivered" in str(error)


@each(
    ("headers", "what"),
    [
        ({"KV-Operation": "DEL"}, "delete marker"),
        ({"KV-Operation": "PURGE", "Nats-Rollup": "sub"}, "delete marker"),
        ({"Nats-Marker-Reason": "MaxAge"}, "delete marker"),
        ({"Status": "503"}, "status message"),
        ({"Status": "100", "Description": "Idle Heartbeat"}, "status message"),
    ],
)
def test_tombstones_and_control_messages_are_not_events(headers: dict[str, str], what: str) -> None:
    """The error names their kind."""
    message = Msg(None, "s", "", b"", headers)  # type: ignore[arg-type]
    assert what in str(refused(DecodeError, "not-a-cloudevent", from_nats_message, message))


def test_featurehub_java() -> None:
    """Lower-case content-type marks structured events, and is not the datacontenttype of binary ones."""
    structured = received(b"content-type: application/cloudevents+json\n", ENVELOPE)
    assert from_nats_message(structured).get_id() == "order 7"
    block = b"ce-id: a%20b\nce-source: /s\nce-specversion: 1.0\nce-type: t\ncontent-type: application/json\n"
    event = from_nats_message(received(block, b'{"a":1}'))
    assert (event.get_id(), event.get_data()) == ("a b", b'{"a":1}')
    assert from_nats_message(received(block, b'{"a":1}'), dialect=Dialect.SDK_GO).get_data() == {"a": 1}
    refused(DecodeError, "not-a-cloudevent", from_nats_message, SimpleNamespace(headers=None, data=b""))


def test_linux_china_java() -> None:
    """``ce-contenttype`` is an extension: the event is binary, and lacks required attributes."""
    message = received(b"ce-contenttype: application/cloudevents+json\n", ENVELOPE)
    assert detect_mode(message) is ContentMode.BINARY
    assert refused(DecodeError, "missing-attribute", from_nats_message, message).attribute == "specversion"
    assert from_nats_message(message, mode=ContentMode.STRUCTURED).get_id() == "order 7"


def test_idarb_dotnet() -> None:
    """The event is in the headers, with an invalid time, and in the payload."""
    block = (
        b"ce-specversion: 1.0\nce-id: 9\nce-source: /s\nce-type: t\nce-time: 02/29/2024 22:10:11\n"
        b"ce-datacontenttype: application/json\n"
    )
    message = received(block, ENVELOPE)
    assert refused(DecodeError, "invalid-timestamp", from_nats_message, message).header == "ce-time"
    assert from_nats_message(message, mode=ContentMode.STRUCTURED).get_id() == "order 7"
    without_time = received(block.replace(b"ce-time: 02/29/2024 22:10:11\n", b""), ENVELOPE)
    assert from_nats_message(without_time).get_data() == json.loads(ENVELOPE)


def test_eventiq() -> None:
    """A Content-Type that is not an event format, and nulls for unset attributes."""
    payload = b'{"specversion":"1.0","id":"7","source":"/s","type":"t","dataschema":null,"subject":null,"data":{"a":1}}'
    event = from_nats_message(received(b"Content-Type: application/json\nNats-Msg-Id: 7\n", payload))
    assert list(event.get_attributes()) == ["specversion", "id", "source", "type"]
    assert event.get_data() == {"a": 1}


def test_walnats() -> None:
    """A time with an offset and a Z is not RFC 3339."""
    block = b"ce-id: 1\nce-source: s\nce-specversion: 1.0\nce-type: t\nce-time: 2024-02-29T22:10:11+00:00Z\n"
    error = refused(DecodeError, "invalid-timestamp", from_nats_message, received(block, b"{}"))
    assert (error.attribute, error.header) == ("time", "ce-time")


def test_cpp_sdk() -> None:
    """The only peer that follows the binding, in both modes."""
    structured = received(b"Content-Type: application/cloudevents+json\n", ENVELOPE)
    assert from_nats_message(structured).get_id() == "order 7"
    block = (
        b"ce-specversion: 1.0\nce-id: order%207\nce-source: /shop/%25C3%25A9t%25C3%25A9?q=x%20y\n"
        b"ce-type: com.example.order.placed\nce-dataschema: https://example.com/s\nce-subject: Cr%C3%A8me%2050%25\n"
        b"ce-time: 2024-02-29T22:10:11Z\nce-ext: a\nce-datacontenttype: application/json\n"
    )
    event = from_nats_message(received(block, b'{"total":12.5}'))
    assert (event.get_id(), event.get_source()) == ("order 7", "/shop/%C3%A9t%C3%A9?q=x y")
    assert event.get_subject() == "Crème 50%"
    assert event.get_data() == {"total": 12.5}
    assert encode_header_block(to_nats_message(event).headers) == b"NATS/1.0\r\n%b\r\n" % block.replace(b"\n", b"\r\n")


def test_kafka_style_names() -> None:
    """``ce_`` is the prefix of Kafka's binding, not of NATS'; the payload is not an event."""
    block = b"ce_specversion: 1.0\nce_id: 1\nce_source: /s\nce_type: t\ncontent-type: application/json\n"
    error = refused(DecodeError, "not-a-cloudevent", from_nats_message, received(block, b'{"total":12.5}'))
    assert "specversion" in str(error)


# --- Messages that sdk-go reads -------------------------------------------------------------------------------------


def test_structured_messages_have_no_ce_header() -> None:
    """sdk-go would decode such a message as binary, with the envelope as data."""
    message = to_nats_message(plain_event({"a": 1}), mode=ContentMode.STRUCTURED)
    assert [name for name, _ in message.headers.items()] == ["Content-Type"]


def test_binary_names_are_lower_case() -> None:
    """sdk-go, nats.go, nats.js and Java look names up with their case."""
    names = [name for name, _ in to_nats_message(plain_event(1, dataschema="a:b", x="y")).headers.items()]
    assert names == [name.lower() for name in names]


# --- Headers in client libraries ------------------------------------------------------------------------------------


def test_nats_py_keeps_encoded_headers() -> None:
    """Values survive its stripping and its dict, because outer spaces are escaped."""
    event = plain_event(subject="  ü  ", x="\u00a0", y="")
    block = encode_header_block(to_nats_message(event).headers)
    parsed = Client._parse_header_lines(block.partition(b"\r\n")[2])
    decoded = from_nats_message(Msg(None, "s", "", b"", parsed))  # type: ignore[arg-type]
    assert decoded.get_attributes() == event.attributes


def test_nats_py_replaces_bytes_that_are_not_utf8() -> None:
    """With U+FFFD, which is a valid character, so the receiver cannot detect it."""
    parsed = Client._parse_header_lines(b"ce-subject: a\xffb\r\n")
    message = binary_message()
    message.headers = Headers({**dict(message.headers), **parsed})
    assert from_nats_message(message).get_subject() == "a\ufffdb"


def test_names_that_differ_in_case_are_two_keys() -> None:
    """In nats-py's dict, so the duplicate is detected; of equal names only the last one is left."""
    parsed = Client._parse_header_lines(b"ce-id: 1\r\nce-id: 2\r\nCE-ID: 3\r\nce-specversion: 1.0\r\n")
    assert parsed["ce-id"] == "2"
    refused(DecodeError, "duplicate-attribute", from_nats_message, SimpleNamespace(headers=parsed, data=b""))


def mail(block: bytes) -> dict[str, Any]:
    """Parse headers as nats-py's ``get_msg()`` does."""
    return dict(BytesParser().parsebytes(block.replace(b"\n", b"\r\n")).items())


def test_get_msg_has_mail_headers() -> None:
    """A non-ASCII value is an email Header whose str() loses the bytes; the codec recovers them."""
    headers = mail("ce-id: 1\nce-source: /s\nce-specversion: 1.0\nce-type: t\nce-subject: Crème 🍮\n".encode())
    assert not isinstance(headers["ce-subject"], str)
    event = from_nats_message(RawStreamMsg("s", 1, None, None, headers))
    assert event.get_subject() == "Crème 🍮"
    assert (event.get_data(), event.has_data) == (None, False)


def test_get_msg_with_bytes_that_are_not_utf8() -> None:
    """They are detected and rejected."""
    headers = mail(b"ce-id: 1\nce-source: /s\nce-specversion: 1.0\nce-type: t\nce-subject: a\xffb\n")
    error = refused(DecodeError, "invalid-utf8", from_nats_message, RawStreamMsg("s", 1, None, None, headers))
    assert error.header == "ce-subject"


def test_status_header_of_an_application() -> None:
    """It does not make a message with an event a status message."""
    block = b"ce-id: 1\nce-source: s\nce-specversion: 1.0\nce-type: t\nStatus: shipped\n"
    assert from_nats_message(received(block, b"x")).get_id() == "1"


def test_reply_that_repeats_the_headers_of_the_request() -> None:
    """As respond() of nats-py does: the reply decodes as the request's event with other data."""
    request = to_nats_message(plain_event({"ask": 1}))
    reply = Msg(None, "_INBOX.x", "", b'{"answer":2}', dict(request.headers))  # type: ignore[arg-type]
    event = from_nats_message(reply)
    assert (event.get_id(), event.get_data()) == ("1", {"answer": 2})
