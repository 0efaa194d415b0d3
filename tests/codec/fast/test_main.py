"""The command and the docstring that show compiled functions."""

import subprocess
import sys
from textwrap import indent
from typing import Any

import pytest

from ce_nats.codec import fast
from ce_nats.codec.fast import __main__ as command
from ce_nats.codec.fast._compile import header_encoder_source


def test_docstring_shows_a_function_verbatim() -> None:
    source = header_encoder_source(("specversion", "id", "source", "type"))
    assert indent(source, "    ") in str(fast.__doc__)


def test_functions_are_printed() -> None:
    arguments = ("id", "source", "type", "time")
    run = [sys.executable, "-m", "ce_nats.codec.fast", *arguments]
    printed = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    assert printed.rstrip("\n") == command.functions(arguments)
    assert printed.count("def convert(") == 4
    assert header_encoder_source(("specversion", *arguments)) in printed


def test_position_of_specversion_is_kept() -> None:
    names = ("id", "source", "type", "specversion")
    assert header_encoder_source(names) in command.functions(names)


@pytest.mark.parametrize("names", [[], ["id"], ["id", "id", "source", "type"], ["id", "source", "type", "my_ext"]])
def test_invalid_attributes_are_rejected(names: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["", *names])
    with pytest.raises(SystemExit, match="attributes must be valid, distinct and include"):
        command.main()
