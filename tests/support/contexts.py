"""Contexts of the nats command line."""

import json

import pytest


@pytest.fixture
def context(tmp_path, monkeypatch):
    """Return a function that writes a context."""
    directory = tmp_path / "nats" / "context"
    directory.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def write(name="shop", *, selected=False, **fields):
        (directory / f"{name}.json").write_text(json.dumps(fields))
        if selected:
            (tmp_path / "nats" / "context.txt").write_text(f"{name}\n")

    return write
