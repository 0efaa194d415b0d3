import json

import pytest


def test_settings_are_changed(at_server, stream):
    result = at_server("configure", stream, "allow_batched=true", "max_msgs=1000", "description=of tests")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["allow_batched=true", "max_msgs=1000", 'description="of tests"']
    again = at_server("configure", stream, "--json", "allow_batched=true", "allow_atomic=true")
    assert json.loads(again.stdout) == {"allow_batched": True, "allow_atomic": True}


def test_settings_of_a_consumer_are_changed(at_server, with_js, stream):
    with_js(lambda js: js.add_consumer(stream, durable_name="c", ack_policy="explicit"))
    result = at_server("configure", stream, "--consumer", "c", "max_ack_pending=5000", "description=of tests")
    assert (result.exit_code, result.stdout.splitlines()) == (0, ["max_ack_pending=5000", 'description="of tests"'])
    missing = at_server("configure", stream, "--consumer", "none", "max_ack_pending=5000")
    assert (missing.exit_code, missing.stderr.split(": ")[1]) == (3, "consumer-not-found")


@pytest.mark.parametrize("text", ["allow_batched", "=true", "Name=1", "a-b=1", ""])
def test_wrong_settings_are_wrong_usage(at_server, stream, text):
    result = at_server("configure", stream, text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a setting must be NAME=VALUE" in result.stderr


@pytest.mark.parametrize("name", ["name", "js", "stream"])
def test_name_cannot_be_changed(at_server, stream, name):
    result = at_server("configure", stream, f"{name}=OTHER")
    assert (result.exit_code, result.stderr) == (
        2,
        f"ce-nats: invalid-option: {name} is not a setting that can be changed\n",
    )


def test_refused_setting_is_an_error(at_server, stream):
    result = at_server("configure", stream, "max_msgs=many")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("ce-nats: request-refused: ")


def test_unknown_stream_is_an_error(at_server):
    result = at_server("configure", "NONE", "max_msgs=1")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("ce-nats: stream-not-found: ")
