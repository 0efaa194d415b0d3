"""Tables for notebooks, parsed as by a browser."""

import json
import subprocess
import sys
from datetime import datetime, timezone
from html.parser import HTMLParser

import pytest
from cloudevents.core.v1.event import CloudEvent

from ce_nats import NatsMessage, from_nats_message, to_nats_message
from ce_nats._notebook import html_table
from ce_nats.aio.core._subscribe import receive
from ce_nats.codec.event import DecodedEvent, NotDelivered
from ce_nats.message import StoredMessage
from ce_nats.testing import FakeDelivery
from tests.support.tables import each

HOSTILE = ("<script>alert(1)</script>", "</table><img src=x onerror=y>", "a\"'><b>&amp;", "&lt;", "`${x}`")


class Table(HTMLParser):
    """Rows of an HTML table; any other element fails the test."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.caption = ""
        self.rows = []
        self.open = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in {"table", "caption", "tr", "th", "td", "pre"}
        assert {name for name, _ in attrs} <= {"style"}
        self.open.append(tag)
        if tag == "tr":
            self.rows.append(["", ""])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "caption" in self.open:
            self.caption += data
        elif "th" in self.open:
            self.rows[-1][0] += data
        elif "td" in self.open:
            self.rows[-1][1] += data

    def __getitem__(self, name):
        (value,) = [value for known, value in self.rows if known == name]
        return value


def shown(value):
    return Table(value._repr_html_())


def event(data=None, **attributes):
    return CloudEvent({"id": "1", "source": "/s", "type": "t", **attributes}, data)


def decoded(data=None, **attributes):
    return from_nats_message(to_nats_message(event(data, **attributes)))


def test_event():
    table = shown(decoded({"total": 12.5, "text": "€"}, time=datetime(2026, 1, 2, tzinfo=timezone.utc), subject="€"))
    assert table.caption == "CloudEvent"
    assert (table["id"], table["source"], table["subject"]) == ("1", "/s", "€")
    assert table["time"] == "2026-01-02T00:00:00Z"
    assert table["datacontenttype"] == "application/json"
    assert json.loads(table["data"]) == {"total": 12.5, "text": "€"}


@each(
    ("data", "content_type", "text"),
    [
        (b"text", "application/octet-stream", "text"),
        (b"\xff\x00\x10", "application/octet-stream", "ff 00 10 (3 bytes)"),
        ("two\nlines\t", "text/plain", "two\nlines\\t"),
        (None, "application/json", None),
        ([1, None, True], "application/json", "[1, null, true]"),
        ("text", "application/json", "text"),
    ],
)
def test_data(data, content_type, text):
    rows = dict(shown(decoded(data, datacontenttype=content_type)).rows)
    assert rows.get("data") == text


def test_json_null_is_shown():
    json_null = NatsMessage(data=b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":null}')
    assert shown(from_nats_message(json_null))["data"] == "null"


@each("text", HOSTILE)
def test_received_text_is_escaped(text):
    """Everywhere, and unescaping returns the original."""
    headers = [("ce-" + text, text), ("Name<b>", text)]
    message = NatsMessage(text, text.encode(), headers, text)
    table = shown(message)
    assert table.rows == [["subject", text], ["ce-" + text, text], ["Name<b>", text], ["data", text], ["reply", text]]
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    table = shown(StoredMessage(text, "", headers, text.encode(), text, 1, now))
    assert (table["stream"], table["subject"], table["data"]) == (text, text, text)
    table = shown(decoded({text: [text]}, subject=text, type=text))
    assert (table["subject"], table["type"]) == (text, text)
    assert json.loads(table["data"]) == {text: [text]}
    table = shown(receive(NatsMessage(text, text.encode(), headers), from_nats_message))
    assert (table["subject"], table["data"], table["Name<b>"]) == (text, text, text)
    assert table["error"].startswith("invalid-attribute-name: ")
    assert Table(html_table(text, [(text, text)])).caption == text


def test_invisible_characters_are_escaped():
    """Right-to-left overrides, escape sequences, and non-UTF-8 bytes in a captured header."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    text = StoredMessage("a", "", [("Name", "\u202e\x1b[1m\udcff\0")], b"\x00", "S", 1, now)._repr_html_()
    text.encode()
    assert Table(text)["Name"] == "\\u202e\\u001b[1m\\udcff\\u0000"
    assert Table(text)["data"] == "\\u0000"


LARGE = 10_000_000


@each(
    ("data", "size"),
    [
        (b"x" * LARGE, "10,000,000 bytes"),
        ("€" * LARGE, "10,000,000 characters"),
        ("€".encode() * LARGE, "30,000,000 bytes"),
        (b"\xff" * LARGE, "10,000,000 bytes"),
        ([1] * LARGE, "10,000,000 items"),
        ({str(number): 1 for number in range(10_000)}, "10,000 members"),
    ],
)
def test_long_data_is_truncated_with_its_size(data, size):
    text = DecodedEvent({"id": "1" * LARGE, "x" * LARGE: "y"}, data)._repr_html_()
    assert len(text) < 10_000
    assert Table(text)["data"].endswith(f"... ({size})")
    assert Table(text)["id"].endswith("111... (10,000,000 characters)")


def test_many_headers_are_truncated_with_their_number():
    table = shown(NatsMessage("a", b"", [(f"Name-{number}", "x") for number in range(1000)]))
    assert len(table.rows) == 61
    assert table.rows[-1] == ["...", "942 more"]


class Odd:
    def __repr__(self):
        raise RuntimeError


def circular():
    data = []
    data.append(data)
    return data


def deep():
    data = []
    for _ in range(10_000):
        data = [data]
    return data


@each(
    ("data", "text"),
    [
        (Odd(), "<Odd>"),
        ({"a": Odd()}, "<dict>"),
        (circular(), "[[...]]"),
        (deep(), "<list>"),
        (NotDelivered(5), "NotDelivered(size=5)"),
        ({1: float("nan")}, '{"1": NaN}'),
    ],
)
def test_data_of_any_type(data, text):
    assert shown(DecodedEvent({"id": "1"}, data))["data"] == text


def test_delivery():
    made = FakeDelivery(to_nats_message(event(5), "orders.paid"), stream="ORDERS", sequence=12, deliveries=2)
    rows = dict(shown(made).rows)
    assert (rows["stream"], rows["sequence"], rows["deliveries"]) == ("ORDERS", "12", "2")
    assert (rows["settled"], rows["subject"], rows["id"], rows["data"]) == ("false", "orders.paid", "1", "5")


def test_received_message():
    table = shown(receive(to_nats_message(event("text"), "a"), from_nats_message))
    assert (table.caption, table["subject"], table["id"], table["data"]) == ("received", "a", "1", "text")


def test_ipython_uses_the_tables():
    formatter = pytest.importorskip("IPython.core.formatters").HTMLFormatter()
    made = FakeDelivery(to_nats_message(event(5), "orders.paid"))
    for value in (made, made.event, NatsMessage("a"), StoredMessage("a", "", [], b"", "S", 1, datetime(2026, 1, 1))):
        assert formatter(value) == value._repr_html_()


@each("name", ["ce_nats", "ce_nats.aio"])
def test_module_is_only_imported_to_show_a_table(name):
    code = f"import sys, {name}; assert 'ce_nats._notebook' not in sys.modules and 'html' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
