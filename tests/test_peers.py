"""
Messages as other programs send them over NATS, as bytes, and their decoded form. All data is invented.

Messages of further programs are cases ``peer-`` in spec-fixtures/binary-mode.json.
"""

from types import SimpleNamespace
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from ce_nats import DecodeError, Dialect, Headers, from_nats_message, to_nats_message
from ce_nats.wire.nats import decode_header_block, encode_header_block
from tests.support.strategies import binary_message, plain_event, refused

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


def test_reply_that_repeats_the_headers_of_the_request() -> None:
    """As respond() of nats-py does: the reply decodes as the request's event with other data."""
    request = to_nats_message(plain_event({"ask": 1}))
    reply = Msg(None, "_INBOX.x", "", b'{"answer":2}', dict(request.headers))  # type: ignore[arg-type]
    event = from_nats_message(reply)
    assert (event.get_id(), event.get_data()) == ("1", {"answer": 2})
