"""Sections of help texts."""

import re

import pytest
from typer.testing import CliRunner

from ce_nats.cli import app


def sections(*command: str) -> dict[str, list[str]]:
    """Return the names in each section."""
    text = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "100"}).output
    parts = re.split(r"^(\S.*):\n", text, flags=re.MULTILINE)
    return {title: re.findall(r"^  (\S+)", part, re.MULTILINE) for title, part in zip(parts[1::2], parts[2::2])}


@pytest.mark.parametrize("command", [["pub"], ["find"], ["dead-letters", "list"]])
def test_options_of_the_connection_are_last(command):
    found = sections(*command)
    assert [*found] == ["Arguments", "Options", "Connection"]
    assert {"-s,", "--creds", "--timeout"} < {*found["Connection"]}
    assert found["Options"][-1] == "--help"


def test_command_without_a_connection_has_one_section_of_options():
    assert [*sections("encode")] == ["Arguments", "Options"]


def test_commands_for_implementers_are_apart():
    found = sections()
    assert [*found] == ["Options", "Commands", "For implementers of other SDKs"]
    assert found["For implementers of other SDKs"] == ["conformance", "answer"]
    assert {"pub", "sub", "dead-letters"} < {*found["Commands"]}
