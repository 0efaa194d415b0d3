"""Errors as documented in the guide: one line, a code and an exit status, for all options of all commands."""

import json
import re
from pathlib import Path

import pytest

from ce_nats import ErrorCode
from ce_nats.testing import NatsServer

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "command-line.md"
# Codes for files and packages; the library raises exceptions of Python instead.
OTHER_CODES = {"file-not-found", "file-exists", "file-error", "missing-package"}
CODES = {str(code) for code in ErrorCode} | OTHER_CODES
NOWHERE = ["--server", "nats://127.0.0.1:1"]

# Commands and the codes of their errors, by exit status.
USAGE = [
    # Connections.
    ("pub a --nkey seed", "invalid-option"),
    ("pub a --nkey none", "invalid-option"),
    ("pub a --nkey directory", "invalid-option"),
    ("pub a --creds seed", "invalid-option"),
    ("pub a --creds bad.creds", "invalid-option"),
    ("pub a --creds none", "invalid-option"),
    ("pub a --context none", "invalid-option"),
    ("pub a --server http://127.0.0.1", "invalid-option"),
    ("pub a --server nats://127.0.0.1:99999", "invalid-option"),
    ("pub a --password x", "invalid-option"),
    ("pub a --creds seed --nkey seed", "invalid-option"),
    ("pub a --tlscert seed", "invalid-option"),
    ("pub a --tlscert none", "invalid-option"),
    ("pub a --tlskey none", "invalid-option"),
    ("pub a --tlsca seed", "invalid-option"),
    ("pub a --js-domain a.b", "invalid-option"),
    ("pub a --js-api-prefix a.>", "invalid-option"),
    ("pub a --inbox-prefix a.*", "invalid-option"),
    ("pub a --inbox-prefix .", "invalid-option"),
    ("pub a --timeout 0", "invalid-option"),
    ("pub a --timeout nan", "invalid-option"),
    ("pub a --timeout x", "invalid-option"),
    # Names and subjects.
    ("pub a..b", "invalid-subject"),
    ("pub a.>", "invalid-subject"),
    ("pub -J {type", "invalid-subject"),
    ("pub {Type}", "invalid-attribute-name"),
    ("pub a --reply b.*", "invalid-subject"),
    ("pub a --reply b -J", "invalid-option"),
    ("encode --subject a..b", "invalid-subject"),
    ("sub a..b", "invalid-subject"),
    ("sub", "invalid-option"),
    ("sub a --all", "invalid-option"),
    ("sub a --follow", "invalid-option"),
    ("sub --stream a.b", "invalid-option"),
    ("sub --stream S --since x", "invalid-option"),
    ("sub --stream S --all --last-per-subject", "invalid-option"),
    ("sub --stream S --queue q", "invalid-option"),
    ("sub \udcff", "invalid-subject"),
    ("sub a --queue *", "invalid-subject"),
    ("top .a", "invalid-subject"),
    ("top a --stream a.b --consumer c", "invalid-option"),
    ("top a --stream S --consumer *", "invalid-option"),
    ("top a --stream S", "invalid-option"),
    ("top", "invalid-option"),
    ("top a --stuck", "invalid-option"),
    ("top --stream S --consumer c --filter id", "invalid-option"),
    *(
        (f"{command} --filter {text}", "invalid-option")
        for text in ("x=", "'")
        for command in (
            *("sub a", "top a", "decode {}", "capture a.jsonl --stream S", "replay one.jsonl", "explain {}"),
            *("dead-letters list S", "dead-letters requeue S", "dead-letters discard S", "find S"),
        )
    ),
    ("capture a.jsonl --subject a.", "invalid-subject"),
    ("capture a.jsonl --stream S --subject a.>.b", "invalid-subject"),
    ("capture a.jsonl --stream a.b", "invalid-option"),
    ("capture a.jsonl", "invalid-option"),
    ("capture a.jsonl --stream S --since x", "invalid-option"),
    ("capture a.jsonl --stream S --until x", "invalid-option"),
    ("capture a.txt --stream S", "invalid-option"),
    ("replay one.jsonl --subject a.*", "invalid-subject"),
    ("replay one.jsonl --allow a..b", "invalid-subject"),
    ("dead-letters requeue S --all --allow a..b", "invalid-subject"),
    ("dead-letters discard a.b 1", "invalid-option"),
    ("pub a --claim-check b", "invalid-option"),
    ("pub a --expiry", "invalid-option"),
    ("pub a --after 1h --target b", "invalid-option"),
    ("pub -J a --after 1h", "invalid-option"),
    ("pub -J a --after soon --target b", "invalid-option"),
    ("pub -J a --after 99999w --at 2026-01-01T00:00:00Z --target b", "invalid-option"),
    ("pub -J a --after 9999999w --target b", "invalid-option"),
    ("pub -J a --at 1h --target b", "invalid-timestamp"),
    ("pub -J a --every 1ms --target b", "invalid-option"),
    ("pub -J a --cron @daily --target b.*", "invalid-subject"),
    ("pub -J a --cron @hourly --target b --every 1h", "invalid-option"),
    ("pub -J a --cron 5 --target b", "invalid-option"),
    ("pub -J a --every 1h --target b --time-zone UTC", "invalid-option"),
    ("pub -J a --target b", "invalid-option"),
    ("configure a.b c=1", "invalid-option"),
    ("configure S c", "invalid-option"),
    ("configure S --consumer a.b c=1", "invalid-option"),
    ("configure S name=a", "invalid-option"),
    ("dead-letters list S --reason x", "invalid-option"),
    ("dead-letters list S --limit 0", "invalid-option"),
    ("migrate a S --queue-durable a", "invalid-option"),
    ("migrate a S --from-server http://127.0.0.1", "invalid-option"),
    ("dead-letters list S --subject a..b", "invalid-subject"),
    ("dead-letters list a.b", "invalid-option"),
    ("dead-letters show a.b 1", "invalid-option"),
    ("dead-letters requeue a.b --all", "invalid-option"),
    ("dead-letters requeue S", "invalid-option"),
    ("explain --stream a.b --sequence 1", "invalid-option"),
    ("explain --stream S", "invalid-option"),
    ("explain --stream S --sequence 1 --id 1", "invalid-option"),
    ("check a.b", "invalid-option"),
    ("check S --consumer a.b", "invalid-option"),
    ("check S --dead-letters a.*", "invalid-subject"),
    ("check S --replicas 0", "invalid-option"),
    ("check S --feature x", "invalid-option"),
    ("check S --read-every x", "invalid-option"),
    ("check S --in-flight 0", "invalid-option"),
    ("check S --system none", "invalid-option"),
    ("find S", "invalid-option"),
    ("find a.b --id 1", "invalid-option"),
    ("find S --subject a..b", "invalid-subject"),
    ("find S --since x", "invalid-option"),
    ("find S --until x", "invalid-option"),
    ("find S --id 1 --dead-letters a.b", "invalid-option"),
    ("find S --id 1 --capture none.jsonl", "file-not-found"),
    ("migrate a b.c", "invalid-option"),
    ("migrate a S --subject b..c", "invalid-subject"),
    ("migrate a S --monitor file:///a", "invalid-message"),
    ("migrate a S --durable a", "invalid-option"),
    ("migrate a S --from-context none", "invalid-option"),
    # Numbers and choices.
    ("sub a --count 0", "invalid-option"),
    ("sub a --dialect x", "invalid-option"),
    ("top a --interval inf", "invalid-option"),
    ("top a --limit 0", "invalid-option"),
    ("capture a.jsonl --stream S --start 0", "invalid-option"),
    ("replay one.jsonl --rate 0", "invalid-option"),
    ("dead-letters show S x", "invalid-option"),
    ("encode --mode x", "invalid-option"),
    ("encode --format protobuf", "invalid-option"),
    ("pub a --dedup x", "invalid-option"),
    ("conformance --timeout inf", "invalid-option"),
    ("conformance --suite x", "invalid-option"),
    ("conformance --exec /none", "invalid-option"),
    # Headers.
    ("pub a -H b", "invalid-option"),
    ("pub a -H ä:b", "invalid-header-name"),
    ("pub a -H ce-id:1", "reserved-header"),
    ("encode -H a:b\nc", "invalid-header-value"),
    ("decode -H b x", "invalid-option"),
    # Files.
    ("pub a none.jsonl", "file-not-found"),
    ("pub a directory", "invalid-option"),
    ("pub a bad.parquet", "invalid-option"),
    ("encode none.json", "file-not-found"),
    ("decode none.parquet", "file-not-found"),
    ("decode directory", "invalid-option"),
    ("decode {} --schema none.json", "file-not-found"),
    ("decode {} --schema directory", "file-error"),
    ("decode {} --schema bad.jsonl", "invalid-option"),
    ("pub a --schema none.json", "file-not-found"),
    ("explain none.json", "file-not-found"),
    ("decode none.parquet -o a.parquet", "file-not-found"),
    ("decode bad.parquet -o none/a.parquet", "file-not-found"),
    ("decode bad.parquet -o bad.parquet", "file-exists"),
    ("decode bad.parquet -o a.csv", "invalid-option"),
    ("decode bad.parquet -o a.parquet --extension n", "invalid-option"),
    ("decode bad.parquet -o a.parquet --extension n:float", "invalid-option"),
    ("decode --extension n:int", "invalid-option"),
    ("replay none.jsonl", "file-not-found"),
    ("replay none.parquet", "file-not-found"),
    ("replay directory", "invalid-option"),
    ("capture none/a.jsonl --stream S", "file-not-found"),
    ("capture bad.parquet --stream S", "file-error"),
    # Commands.
    ("none", "invalid-option"),
    ("pub", "invalid-option"),
    ("pub a --none", "invalid-option"),
    ("dead-letters none", "invalid-option"),
]
INPUT = [
    ("encode bad.jsonl", "invalid-json"),
    ("decode bad.jsonl", "invalid-json"),
    ("decode bad.parquet", "invalid-message"),
    ("decode bad.parquet -o a.parquet", "invalid-message"),
    ("explain bad.jsonl", "invalid-json"),
    ("explain {}", "invalid-message"),
    ("answer", "invalid-message"),
]
NATS = [(f"{command} {' '.join(NOWHERE)}", "connection-failed") for command in (
    "pub a", "pub a -J", "pub a --atomic", "configure S b=1", "sub a", "top a", "sub --stream S",
    "capture a.jsonl --stream S", "replay one.jsonl", "replay one.jsonl -J",
    "dead-letters list S", "dead-letters show S 1", "dead-letters requeue S --all", "explain --stream S --sequence 1",
    "find S --id 1", "migrate a S", "capture a.jsonl --subject a",
)]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "status", "code"),
    [(command, status, code) for status, known in ((1, INPUT), (2, USAGE), (3, NATS)) for command, code in known],
)
def test_error_has_status_and_code(cli, event, tmp_path, monkeypatch, command, status, code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seed").write_text("not a seed\n")
    (tmp_path / "bad.creds").write_text("-----BEGIN NATS USER JWT-----\nx\n-----BEGIN USER NKEY SEED-----\nx\n")
    (tmp_path / "bad.jsonl").write_text("bad\n")
    (tmp_path / "bad.parquet").write_text("bad")
    (tmp_path / "one.jsonl").write_text('{"subject":"a","headers":[],"timestamp":"2026-01-01T00:00:00Z"}\n')
    (tmp_path / "directory").mkdir()
    result = cli(*command.split(" "), stdin="bad\n" if command == "answer" else event())
    assert (result.exit_code, result.stdout) == (status, "")
    assert re.fullmatch(f"ce-nats: {code}: [^\n]+\n", result.stderr)
    assert code in CODES


def test_all_commands_and_options_are_covered():
    """All options with values that can be invalid."""
    from ce_nats.cli import app

    covered = " ".join(command for command, _ in USAGE)
    import typer

    commands = dict(typer.main.get_command(app).commands)
    commands |= commands.pop("dead-letters").commands
    for name, command in commands.items():
        if name in ("demo", "answer"):
            continue
        assert name in covered
        for option in (found for found in command.params if found.param_type_name == "option"):
            accepts_any = option.is_flag or option.name in ("error", "ignore", "user", "identifier", "source", "kind")
            assert accepts_any or any(text in covered for text in option.opts), (name, option.opts)


def test_codes_for_files_are_documented():
    text = GUIDE.read_text("utf-8")
    for code in OTHER_CODES:
        assert f"`{code}`" in text


def test_rejected_password_is_a_single_error(cli):
    """The server closes the connection, which the client may detect at any later write or read."""
    with NatsServer(config="authorization: {user: ada, password: s3cret}") as server:
        for _ in range(5):
            result = cli("sub", "a", "--server", server.url, "--user", "ada", "--password", "wrong")
            assert result.exit_code == 3
            assert result.stderr == (
                f"ce-nats: authentication-failed: cannot connect to {server.url}: "
                "authentication rejected by the server (nats: 'Authorization Violation')\n"
            )


def test_decode_accepts_captures(at_server, event, stream, subject, tmp_path):
    """A directory, one of its files, or JSON lines. Messages that are not events are reported with their positions."""
    at_server("pub", "-J", subject, stdin=event(1, data={"a": 1}) + event(2))
    at_server("replay", "-J", "-", stdin=json.dumps({"subject": subject, "headers": [], "data": "no",
              "timestamp": "2026-01-01T00:00:00Z"}) + "\n")  # fmt: skip
    at_server("pub", "-J", subject, stdin=event(3))
    for name in ("a.parquet", "a.jsonl"):
        assert at_server("capture", tmp_path / name, "--stream", stream).exit_code == 0
    stored = f"message 3 of stream {stream}"
    part = next((tmp_path / "a.parquet").glob("part-*"))
    for path, place in [(tmp_path / "a.parquet", stored), (part, stored), (tmp_path / "a.jsonl", stored)]:
        result = at_server("decode", path, stdin="not read")
        assert result.exit_code == 1
        assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ["1", "2", "3"]
        assert result.stderr.startswith(f"ce-nats: not-a-cloudevent: {place}: ")
        explained = [json.loads(line) for line in at_server("explain", "--json", path).stdout.splitlines()]
        assert [found["error"] and found["error"]["code"] for found in explained] == [
            None, None, "not-a-cloudevent", None,
        ]  # fmt: skip


@pytest.mark.parametrize("command", [[], ["dead-letters"]])
def test_commands_without_arguments_print_the_help(cli, command):
    result = cli(*command)
    assert "Commands:" in result.output
    assert "ce-nats:" not in result.output
