import json

import pytest

from tests.support.reading import until_stored

REQUIRED = [["ce-specversion", "1.0"], ["ce-id", "1"], ["ce-source", "/s"], ["ce-type", "t"]]


def explain(cli, headers, data=""):
    result = cli("explain", "--json", json.dumps({"headers": headers, "data": data}))
    return result.exit_code, json.loads(result.stdout)


def test_headers_are_shown_as_sent_and_as_decoded(cli):
    status, found = explain(cli, [*REQUIRED, ["CE-Subject", "a%20%E2%82%AC"], ["Tag", "%20"]], "x")
    assert (status, found["mode"], found["error"], found["data_bytes"]) == (0, "binary", None, 1)
    subject, tag = found["headers"][-2:]
    assert subject == {
        "name": "CE-Subject",
        "raw": "a%20%E2%82%AC",
        "attribute": "subject",
        "value": "a €",
        "error": None,
    }
    assert tag == {"name": "Tag", "raw": "%20", "attribute": None, "value": None, "error": None}
    assert found["event"]["subject"] == "a €"


def test_each_invalid_header_has_an_error(cli):
    """The error of the message is the error of the first invalid header."""
    status, found = explain(cli, [*REQUIRED, ["ce-time", "now"], ["ce-subject", "%"]])
    assert (status, found["error"]["code"], found["error"]["header"]) == (1, "invalid-timestamp", "ce-time")
    assert found["error"]["requirement"] == "CE-TS-13"
    codes = [header["error"] and header["error"]["code"] for header in found["headers"]]
    assert codes == [None] * 4 + ["invalid-timestamp", "invalid-percent-escape"]


@pytest.mark.parametrize(
    ("headers", "data", "mode", "reason", "code"),
    [
        ([["Content-Type", "application/cloudevents+json"]], "{}", "structured", "Content-Type", "missing-attribute"),
        ([], "{}", "structured", "no header", "not-a-cloudevent"),
        ([["Content-Type", "application/cloudevents-batch+json"]], "[]", None, "", "batch-not-supported"),
    ],
)
def test_mode_and_reason(cli, headers, data, mode, reason, code):
    status, found = explain(cli, headers, data)
    assert (status, found["mode"], found["error"]["code"]) == (1, mode, code)
    assert (found["reason"] or "").startswith(reason)


@pytest.mark.parametrize(
    ("header", "dialect", "has_hint"),
    [
        ("content-type", "spec", True),
        ("Content-Type", "spec", True),
        ("content-type", "sdk-go", False),
        ("ce-datacontenttype", "spec", False),
        ("x", "spec", False),
    ],
)
def test_content_type_that_is_not_that_of_the_data_has_a_hint(cli, header, dialect, has_hint):
    message = json.dumps({"headers": [*REQUIRED, [header, "application/json"]], "data": "{}"})
    found = json.loads(cli("explain", "--dialect", dialect, "--json", message).stdout)
    assert (found["error"], found["hint"] is not None) == (None, has_hint)
    assert ("hint: header " in cli("explain", "--dialect", dialect, message).stdout) is has_hint


def test_data_that_its_media_type_does_not_explain_has_a_hint(cli):
    message = json.dumps({"headers": [*REQUIRED, ["ce-datacontenttype", "text/plain"]], "data_base64": "6Q=="})
    found = json.loads(cli("explain", "--json", message).stdout)
    assert (found["error"], found["event"]["data_base64"]) == (None, "6Q==")
    assert "invalid-data: the data must be text in utf-8" in found["hint"]


def test_text_output_has_no_control_characters(cli):
    headers = [*REQUIRED, ["ce-subject", "%C0%A0"], ["Tag", "\x1b[31m[red]\udcff"]]
    result = cli("explain", stdin=json.dumps({"headers": headers}))
    assert result.exit_code == 1
    assert result.stdout.startswith("binary: there are headers that start with 'ce-'\n")
    assert "\\u001b[31m[red]\\udcff" in result.stdout
    assert "\x1b" not in result.stdout
    assert "at header ce-subject, attribute subject, requirement NB-3.1.3.2-22" in result.stdout


LONG = "orders/2026/" * 12
TAIL = "/tail" * 30


@pytest.mark.parametrize("columns", ["60", "80", "200", None])
@pytest.mark.parametrize("value", [f"{LONG}100%/x{TAIL}", f"{LONG}x%C3%28y{TAIL}", f"{LONG}a%00b{TAIL}"])
def test_values_are_not_truncated(cli, monkeypatch, columns, value):
    """Values are wrapped, wherever the error is; in a pipe of unknown width they are on one line."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    result = cli("explain", stdin=json.dumps({"headers": [*REQUIRED, ["ce-subject", value]]}))
    assert "…" not in result.stdout
    table = result.stdout[: result.stdout.index("payload:")].splitlines()[1:]
    if columns is None:
        assert any(value in line for line in table)
    else:
        assert max(map(len, table)) <= int(columns)
        at = table[1].index("1.0")  # start of the column
        to = table[0].index("as decoded") - 2
        assert value in "".join(line[at:to].strip() for line in table)


def test_excerpt_of_a_very_long_value_contains_its_error(cli):
    value = "a" * 30_000 + "100%/x" + "b" * 30_000
    result = cli("explain", stdin=json.dumps({"headers": [*REQUIRED, ["ce-subject", value], ["Tag", "c" * 1000]]}))
    assert "100%/x" in result.stdout[: result.stdout.index("payload:")]
    assert "[600 characters]" in result.stdout
    assert len(result.stdout) < 5_000


@pytest.mark.parametrize(
    ("value", "position", "around"),
    [
        (f"{LONG}100%/x{TAIL}", 147, "%/x"),
        (f"€%20{LONG}x%C3%28y{TAIL}", 149, "%C3%28y"),
        (f"€%20{LONG}\udcffy{TAIL}", 148, "\udcffy"),
        (f"{LONG}é%C3%A9a%00b{TAIL}", 152, "%00b"),
        ("%ZZ", 0, "%ZZ"),
    ],
)
def test_position_of_header_errors(cli, value, position, around):
    _, found = explain(cli, [*REQUIRED, ["ce-subject", value]])
    assert (found["error"]["position"], found["headers"][-1]["error"]["position"]) == (position, position)
    assert around in found["error"]["around"]
    assert value[position:].startswith(around)
    assert len(found["error"]["around"]) <= 60
    printed = cli("explain", json.dumps({"headers": [*REQUIRED, ["ce-subject", value]]})).stdout
    has_position = f"  after {position} characters of the value: " in printed
    assert has_position == (position > 0)  # otherwise the error text already quotes the value


def test_position_of_payload_errors(cli):
    data = '{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":1,}}'
    given = json.dumps({"headers": [["Content-Type", "application/cloudevents+json"]], "data": data})
    error = json.loads(cli("explain", "--json", given).stdout)["error"]
    assert error["position"] == data.index(",}}") + 1
    assert error["around"] == data[-32:]
    assert "bytes of the payload: " in cli("explain", given).stdout
    not_utf8 = json.dumps({"headers": [["Content-Type", "application/cloudevents+json"]], "data_base64": "e8Mo"})
    error = json.loads(cli("explain", "--json", not_utf8).stdout)["error"]
    assert (error["code"], error["position"], error["around"]) == ("invalid-utf8", 1, "{\\xc3(")


def test_unknown_positions(cli):
    """In quoted strings, which are unquoted before decoding, and in one of several headers with the same name."""
    _, found = explain(cli, [*REQUIRED, ["ce-subject", '"\\%41%"']])
    assert "position" not in found["error"]
    _, found = explain(cli, [*REQUIRED, ["ce-subject", "a"], ["ce-subject", "%"]])
    assert "position" not in found["error"]


def test_message_of_a_stream_is_explained(at_server, with_js, send_raw_headers, stream, subject):
    """With the headers as stored: duplicates, and bytes that are not UTF-8."""
    send_raw_headers(b"ce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: \xff\r\nTag: b\r\nTag: a\r\n")
    result = at_server("explain", "--stream", stream, "--sequence", 1)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"message 1 of {stream} on {subject}, 20")
    assert "invalid-utf8" in result.stdout
    result = at_server("explain", "--stream", stream, "--sequence", 1, "--json")
    found = json.loads(result.stdout)
    assert (found["stream"], found["sequence"], found["subject"]) == (stream, 1, subject)
    assert [header["raw"] for header in found["headers"] if header["name"] == "Tag"] == ["b", "a"]
    assert found["error"]["code"] == "invalid-utf8"


@pytest.fixture
def send_raw_headers(with_js, subject):
    async def send(js, lines):
        block = b"NATS/1.0\r\n" + lines + b"\r\n"
        await js._nc._send_command(f"HPUB {subject} {len(block)} {len(block)}\r\n".encode() + block + b"\r\n")
        await until_stored(js, subject.replace(".", "_"), 1)

    return lambda lines: with_js(send, lines)


def test_event_of_a_stream_is_explained(at_server, event, stream, subject):
    assert at_server("pub", "-J", subject, event(data={"total": 1})).exit_code == 0
    result = at_server("explain", "--stream", stream, "--sequence", 1)
    assert (result.exit_code, "binary: there are headers" in result.stdout) == (0, True)
    missing = at_server("explain", "--stream", stream, "--sequence", 2)
    assert (missing.exit_code, missing.stderr.split(": ")[1]) == (3, "message-not-found")
    assert at_server("explain", "--stream", "NONE", "--sequence", 2).exit_code == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["--stream", "S"],
        ["--sequence", 1],
        ["--id", "1"],
        ["--stream", "S", "--sequence", 1, "--id", "1"],
        ["{}", "--stream", "S", "--sequence", 1],
    ],
    ids=str,
)
def test_stream_requires_a_sequence_or_an_id(cli, arguments):
    result = cli("explain", *arguments)
    assert (result.exit_code, "--stream must be given with --sequence or --id" in result.stderr) == (2, True)


def test_message_with_the_id_of_an_event(at_server, with_js, stream, subject, event):
    """Also one that is not valid; each of several."""
    for given in (event(1), event(2)):
        assert at_server("pub", "-J", subject, given).exit_code == 0
    with_js(lambda js: js.publish(subject, b"x", headers={"ce-id": "2", "ce-specversion": "1.0"}))
    found = at_server("explain", "--stream", stream, "--id", "2", "--json")
    assert [json.loads(line)["sequence"] for line in found.stdout.splitlines()] == [2, 3]
    assert found.exit_code == 1
    assert "message 2 of" in at_server("explain", "--stream", stream, "--id", "2").stdout
    missing = at_server("explain", "--stream", stream, "--id", "3")
    assert (missing.exit_code, missing.stderr.split(": ")[1]) == (3, "message-not-found")


def test_broken_structured_event_is_shown_with_the_place_of_the_error(cli):
    text = '{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"yesterday"}'
    headers = [["Content-Type", "application/cloudevents+json"]]
    _, found = explain(cli, headers, text)
    assert found["payload"] == text
    assert found["error"]["position"] == text.index('"time"')
    shown = cli("explain", json.dumps({"headers": headers, "data": text})).stdout
    assert f"payload: {len(text)} bytes: {text}" in shown
    assert f"after {text.index(chr(34) + 'time')} bytes of the payload: " in shown


def test_dialect_of_the_sender_is_a_hint(cli):
    _, found = explain(cli, [*REQUIRED, ["ce-subject", "100%"]])
    assert found["error"]["code"] == "invalid-percent-escape"
    assert found["hint"] == "with --dialect sdk-go it is an event"


def test_context_is_only_read_with_a_stream(cli, monkeypatch):
    monkeypatch.setenv("NATS_CONTEXT", "missing")
    assert cli("explain", json.dumps({"headers": REQUIRED, "data": ""})).exit_code == 0
    assert cli("explain", "--stream", "S", "--sequence", 1).exit_code == 2


def test_data_that_was_not_delivered_is_an_error(cli):
    """Not an event without data; of ``decode``, too."""
    headers = [*REQUIRED, ["Nats-Msg-Size", "13"]]
    status, found = explain(cli, headers)
    assert (status, found["error"]["code"], found["event"]) == (1, "data-not-delivered", None)
    result = cli("decode", json.dumps({"headers": headers, "data": ""}))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "data-not-delivered: the payload of 13 bytes was not delivered" in result.stderr
