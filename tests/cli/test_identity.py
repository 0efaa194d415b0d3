"""Attributes of messages that are events, or were meant to be."""

from ce_nats.cli._identity import identity_of
from tests.support.tables import each

BINARY = [("ce-specversion", "1.0"), ("ce-id", "a%20b"), ("ce-source", "/s"), ("ce-type", "t")]
JSON = [("Content-Type", "application/cloudevents+json")]
VALID = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"2026-01-31T12:00:00Z"}'


@each(
    ("headers", "data", "expected", "code"),
    [
        (BINARY, b"", ("a b", "/s", "t", None), None),
        ([*BINARY, ("ce-time", "2026-01-31T12:00:00.5Z")], b"", ("a b", "/s", "t", "2026-01-31T12:00:00.5Z"), None),
        (JSON, VALID, ("1", "/s", "t", "2026-01-31T12:00:00Z"), None),
        (BINARY[1:], b"", ("a b", "/s", "t", None), "missing-attribute"),
        ([*BINARY, ("ce-time", "%zz")], b"", ("a b", "/s", "t", "%zz"), "invalid-percent-escape"),
        (JSON, VALID.replace(b'"t"', b"7"), ("1", "/s", None, "2026-01-31T12:00:00Z"), "invalid-attribute-type"),
        (JSON, b'["id"]', (None,) * 4, "not-an-object"),
        (JSON, b"{", (None,) * 4, "invalid-json"),
        (JSON, b"\xff", (None,) * 4, "invalid-utf8"),
        (JSON, b"[" * 10_000, (None,) * 4, "invalid-json"),
        ([], b"text", (None,) * 4, "not-a-cloudevent"),
    ],
)
def test_attributes_that_can_be_read(headers, data, expected, code):
    *found, error = identity_of(headers, data)
    assert (tuple(found), error and str(error.code)) == (expected, code)
