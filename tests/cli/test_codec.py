import json

import pytest

HEADERS = [["ce-specversion", "1.0"], ["ce-id", "1"], ["ce-source", "/tests"], ["ce-type", "t"]]


def test_encode_prints_the_raw_message(cli, event):
    result = cli("encode", "-H", "Tag: a", event(subject="€", data={"a": 1}))
    block, _, payload = result.stdout_bytes.partition(b"\r\n\r\n")
    assert result.exit_code == 0
    assert block.split(b"\r\n")[0] == b"NATS/1.0"
    assert {b"ce-subject: %E2%82%AC", b"Tag: a"} < set(block.split(b"\r\n"))
    assert payload == b'{"a":1}\n'


def test_encode_expands_subject_templates(cli, event):
    assert json.loads(cli("encode", "--json", "--subject", "a.{type}", event()).stdout)["subject"] == "a.t"
    assert cli("encode", "--json", "--subject", "a.{", event()).exit_code == 2


def test_encode_supports_structured_mode(cli, event):
    fields = json.loads(cli("encode", "-m", "structured", "--json", "--subject", "a.b", event()).stdout)
    assert (fields["subject"], fields["headers"]) == ("a.b", [["Content-Type", "application/cloudevents+json"]])
    assert json.loads(fields["data"])["id"] == "1"


@pytest.mark.parametrize("options", [["--json"], []])
def test_protobuf_format_round_trip(cli, event, options):
    given = event(data={"a": [1]}, datacontenttype="application/json", n=7)
    encoded = cli("encode", "-m", "structured", "--format", "protobuf", *options, stdin=given)
    assert b"application/cloudevents+protobuf" in encoded.stdout_bytes
    assert json.loads(cli("decode", stdin=encoded.stdout_bytes).stdout) == json.loads(given)


def test_format_requires_structured_mode(cli, event):
    result = cli("encode", "--format", "protobuf", event())
    assert (result.exit_code, result.stderr) == (
        2,
        "ce-nats: invalid-option: --format must be used with --mode structured\n",
    )
    assert cli("encode", "-m", "structured", "--format", "avro", event()).exit_code == 2


@pytest.mark.parametrize("options", [["--json"], []])
@pytest.mark.parametrize(
    "members",
    [
        {"data": {"a": [1, None, "€"]}},
        {"data_base64": "AP8K"},
        {"datacontenttype": "text/plain", "data": "a\r\n\r\nb\n"},
        {},
    ],
)
def test_decode_reads_what_encode_prints(cli, event, members, options):
    encoded = cli("encode", *options, stdin=event(**members))
    decoded = cli("decode", stdin=encoded.stdout_bytes)
    assert decoded.exit_code == 0
    assert json.loads(decoded.stdout) == {
        **json.loads(event(**members)),
        **({"datacontenttype": "application/json"} if isinstance(members.get("data"), dict) else {}),
    }


def test_documents_are_single_lines_or_indented(cli, event):
    pretty = json.dumps(json.loads(event(2)), indent=2)
    result = cli("encode", "--json", stdin=f"{event(1)}\n{pretty}\n{event(3).strip()}")
    ids = [dict(json.loads(line)["headers"])["ce-id"] for line in result.stdout.splitlines()]
    assert ids == ["1", "2", "3"]


def test_invalid_events_do_not_stop_later_ones(cli, event):
    """Each is an error of one line with position and code, and the exit status is 1."""
    result = cli("encode", "--json", stdin=event(1) + event(2, Bad=1) + "not JSON\n" + event(4))
    assert result.exit_code == 1
    assert [dict(json.loads(line)["headers"])["ce-id"] for line in result.stdout.splitlines()] == ["1", "4"]
    first, second = result.stderr.splitlines()
    assert first.startswith("ce-nats: invalid-attribute-name: line 2: ")
    assert second.startswith("ce-nats: invalid-json: line 3: ")


@pytest.mark.parametrize(("charset", "text"), [("klingon", 'a"€'), ("latin-1", "€"), ("utf-8", "€")])
def test_text_that_its_charset_cannot_encode_is_printed(cli, event, charset, text):
    """A structured event has its text in UTF-8, so it is decoded, and its charset is not needed."""
    given = event(datacontenttype=f"text/plain;charset={charset}", data=text)
    message = {"headers": [["Content-Type", "application/cloudevents+json"]], "data": given}
    decoded = cli("decode", stdin=json.dumps(message))
    assert (decoded.exit_code, decoded.stderr) == (0, "")
    assert json.loads(decoded.stdout) == json.loads(given)
    assert decoded.stdout.endswith("}\n")


def test_text_that_is_not_unicode_is_an_error(cli):
    """UTF-7 can have unpaired surrogates, which JSON cannot."""
    message = {"headers": [*HEADERS, ["ce-datacontenttype", "text/plain;charset=utf-7"]], "data": "+2AA-"}
    decoded = cli("decode", stdin=json.dumps(message))
    assert (decoded.exit_code, decoded.stdout) == (1, "")
    assert decoded.stderr.startswith("ce-nats: invalid-data: ")


def test_decode_accepts_headers_on_the_command_line(cli):
    given = [part for name, value in HEADERS for part in ("-H", f"{name}: {value}")]
    result = cli("decode", *given, stdin=b"\xff\n")
    assert json.loads(result.stdout)["data_base64"] == "/wo="


def test_decode_supports_dialects(cli):
    message = json.dumps({"headers": [*HEADERS, ["ce-subject", "100%"]]})
    assert json.loads(cli("decode", "--dialect", "sdk-go", message).stdout)["subject"] == "100%"
    assert cli("decode", message).stderr.startswith("ce-nats: invalid-percent-escape: ")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("[]", "not-an-object"),
        ('{"headers": [["a", 1]]}', "invalid-header-value"),
        ('{"headers": [], "data": "\\ud800"}', "invalid-message"),
        ("[" * 100_000, "invalid-json"),
        ("NATS/1.0\r\nno header\r\n\r\n", "invalid-header-block"),
    ],
)
def test_invalid_message_is_an_error_of_one_line(cli, message, code):
    result = cli("decode", stdin=message)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert f" {code}: " in result.stderr


EVENT = '{"specversion":"1.0","id":"1","source":"/s","type":"t"}'
MESSAGE = '{"headers":[["ce-id","1"]],"data":"x"}'
OF_SUB = f'{{"subject":"a","event":{EVENT}}}'


@pytest.mark.parametrize(
    ("command", "given", "code", "hint"),
    [
        ("decode", EVENT, "invalid-message", "looks like an event, but it must be a message"),
        ("explain", EVENT, "invalid-message", "looks like an event, but it must be a message"),
        ("encode", MESSAGE, "invalid-attribute-type", "looks like a message, but it must be an event"),
        ("decode", f"[{MESSAGE}]", "not-an-object", "looks like an array"),
        ("encode", f"[{EVENT}]", "not-an-object", "looks like an array"),
        ("decode", OF_SUB, "invalid-message", "looks like output of sub --json"),
    ],
)
def test_error_has_a_hint_for_input_of_another_kind(cli, tmp_path, monkeypatch, command, given, code, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "message.json").write_text(MESSAGE)
    for result in (cli(command, given), cli(command, stdin=given)):
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert f" {code}: " in result.stderr
        assert hint in result.stderr


@pytest.mark.parametrize("command", ["decode", "encode", "explain"])
def test_file_name_on_standard_input_is_recognized(cli, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "message.json").write_text(MESSAGE)
    result = cli(command, stdin="message.json")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "ce-nats: invalid-json: " in result.stderr
    assert "is the name of a file" in result.stderr


def test_encode_accepts_lines_of_sub(cli):
    """Their events are validated like all others."""
    lines = [OF_SUB, OF_SUB.replace('"1.0"', '"2.0"'), OF_SUB.replace('"a"', "1"), OF_SUB.replace("}}", '},"x":1}')]
    result = cli("encode", "--json", stdin="\n".join(lines))
    assert result.exit_code == 1
    assert dict(json.loads(result.stdout)["headers"])["ce-source"] == "/s"
    codes = [line.split(": ")[1:3] for line in result.stderr.splitlines()]
    assert codes == [
        ["unsupported-specversion", "line 2"],
        ["invalid-attribute-type", "line 3"],
        ["invalid-attribute-type", "line 4"],
    ]


def test_events_and_messages_are_read_from_files(cli, tmp_path, event):
    """Standard input is then not read, except with ``-``."""
    (tmp_path / "events.jsonl").write_text(event(1) + "bad\n" + event(2))
    encoded = cli("encode", "--json", tmp_path / "events.jsonl", stdin="not read")
    assert (encoded.exit_code, encoded.stderr.split(": ")[1:3]) == (1, ["invalid-json", "line 2"])
    (tmp_path / "messages.jsonl").write_text(encoded.stdout)
    decoded = cli("decode", tmp_path / "messages.jsonl", stdin="not read")
    assert (decoded.exit_code, decoded.stderr) == (0, "")
    assert [json.loads(line)["id"] for line in decoded.stdout.splitlines()] == ["1", "2"]
    assert cli("decode", "-", stdin=encoded.stdout).stdout == decoded.stdout
    (tmp_path / "raw").write_bytes(cli("encode", event(3, data="a\nb")).stdout_bytes)
    assert json.loads(cli("decode", tmp_path / "raw").stdout)["data"] == "a\nb"
    assert len(cli("explain", "--json", tmp_path / "messages.jsonl").stdout.splitlines()) == 2


@pytest.mark.parametrize("given", ["{}", '{"headers":1}', "no.json", "x" * 5000, "a\0b", '"text"', "{", "1"])
@pytest.mark.parametrize("command", ["encode", "decode"])
def test_error_for_unknown_input_has_no_hint(cli, command, given):
    result = cli(command, stdin=given)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "looks like" not in result.stderr
    assert "name of a file" not in result.stderr
