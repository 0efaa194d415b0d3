"""The command ``demo``."""

from __future__ import annotations

import typer

from .program import guarded

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(guarded(demo))


def demo() -> None:
    """
    Show events on their way through NATS and Spark.

    Starts a nats-server and a local Spark of its own, publishes a few hundred events and broken messages, receives and
    captures them, and explodes the capture into columns. The exit status is 0 where all steps found the same.
    """
    from .demonstration import main  # what other commands need not load

    raise typer.Exit(main())
