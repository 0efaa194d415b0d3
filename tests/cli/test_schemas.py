import json

import pytest

from ce_nats.aio.jetstream import configure_stream

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture
def schema(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(NUMBER))
    return path


@pytest.mark.parametrize("option", [[], ["--jetstream"]], ids=["core", "jetstream"])
def test_pub_refuses_wrong_data(at_server, event, schema, stream, stored, subject, option):
    lines = event(1, data={"n": 1}) + event(2, data={"n": "x"}) + event(3, data={"n": 3})
    result = at_server("pub", subject, *option, "--schema", schema, stdin=lines)
    error, count = result.stderr.splitlines()
    assert "data-mismatch: line 2: event '2' of type 't': the data must match its JSON Schema" in error
    assert (result.exit_code, count) == (1, "2 published")
    assert len(stored(stream)) == 2


def test_atomic_batch_with_wrong_data_is_not_stored(at_server, with_js, event, schema, stream, stored, subject):
    async def allow(js):
        await configure_stream(js, stream, allow_atomic=True)

    with_js(allow)
    lines = event(1, data={"n": 1}) + event(2, data={"n": "x"})
    result = at_server("pub", subject, "--atomic", "--schema", schema, stdin=lines)
    assert "data-mismatch: " in result.stderr
    assert result.exit_code == 1
    assert stored(stream) == []


def test_decode_refuses_wrong_data(cli, event, schema):
    encoded = cli("encode", "--json", stdin=event(1, data={"n": 1}) + event(2, data=[])).stdout
    result = cli("decode", "--schema", f"t={schema}", stdin=encoded)
    assert json.loads(result.stdout)["id"] == "1"
    assert "data-mismatch: line 2: event '2'" in result.stderr
    assert result.exit_code == 1
    assert cli("decode", "--schema", f"other.*={schema}", stdin=encoded).exit_code == 0


def test_sub_prints_wrong_data_as_an_error(start, at_server, event, schema, subject):
    process = start("sub", "--json", "--schema", schema, "--count", 2, subject)
    assert process.stderr.readline().startswith(b"listening on ")
    assert at_server("pub", subject, stdin=event(1, data={"n": 1}) + event(2, data=5)).exit_code == 0
    first, second = [json.loads(line) for line in process.communicate(timeout=60)[0].splitlines()]
    assert first["event"]["data"] == {"n": 1}
    assert (second["error"]["code"], second["data"]) == ("data-mismatch", "5")


@pytest.fixture
def hostile(tmp_path):
    """A schema whose validator fails for an integer of 400 digits."""
    path = tmp_path / "hostile.json"
    path.write_text('{"multipleOf": 0.01}')
    return path


def test_sub_continues_after_data_that_makes_the_validator_fail(start, at_server, event, hostile, subject):
    process = start("sub", "--json", "--schema", hostile, "--count", 2, subject)
    assert process.stderr.readline().startswith(b"listening on ")
    assert at_server("pub", subject, stdin=event(1, data=10**400 + 1) + event(2, data=5)).exit_code == 0
    first, second = [json.loads(line) for line in process.communicate(timeout=60)[0].splitlines()]
    assert first["error"]["code"] == "data-mismatch"
    assert second["event"]["data"] == 5
    assert process.returncode == 0


def test_decode_and_pub_refuse_data_that_makes_the_validator_fail(cli, at_server, event, hostile, subject):
    encoded = cli("encode", "--json", stdin=event(1, data=10**400 + 1) + event(2, data=5)).stdout
    result = cli("decode", "--schema", hostile, stdin=encoded)
    assert json.loads(result.stdout)["id"] == "2"
    assert "data-mismatch: line 1: event '1' of type 't': the validator of JSON Schemas raised" in result.stderr
    assert result.exit_code == 1
    result = at_server("pub", subject, "--schema", hostile, stdin=event(1, data=10**400 + 1) + event(2, data=5))
    assert "data-mismatch: line 1: " in result.stderr
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, "1 published")


@pytest.mark.parametrize(
    ("content", "option", "text"),
    [
        ("{", "{path}", "--schema must be a file with a JSON Schema, got "),
        ("[" * 100_000, "{path}", "--schema must be a file with a JSON Schema, got "),
        ("5", "{path}", "the schema of '*' must be a JSON Schema or a type"),
        ('{"type": 5}', "t={path}", "the schema of 't' must be a JSON Schema: "),
        ('{"$ref": "https://example.com/x"}', "{path}", "must be in it or in registry="),
        ("{}", "a*b={path}", "pattern must be a type, or the beginning of one"),
        ("{}", "={path}", "pattern must be a type, or the beginning of one"),
    ],
)
def test_invalid_schemas_are_rejected(cli, event, tmp_path, content, option, text):
    path = tmp_path / "schema.json"
    path.write_text(content)
    result = cli("decode", "--schema", option.format(path=path), stdin="")
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr


def test_missing_file_is_an_error(cli, tmp_path):
    result = cli("decode", "--schema", tmp_path / "missing.json", stdin="")
    assert result.exit_code != 0
    assert "missing.json" in result.stderr


def test_second_schema_of_a_type_is_rejected(cli, schema):
    result = cli("decode", "--schema", schema, "--schema", f"*={schema}", stdin="")
    assert result.exit_code == 2
    assert "--schema must be given once for each type, got '*' again" in result.stderr


def test_schema_is_not_for_columns(cli, schema):
    result = cli("decode", "x.parquet", "--output", "y.parquet", "--schema", schema)
    assert result.exit_code == 2
    assert "without --header, --schema, --filter and --dialect" in result.stderr
