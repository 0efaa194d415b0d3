"""The command ``demo``."""

from __future__ import annotations

import typer

from ._program import guarded


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(guarded(demo))


def demo() -> None:
    """
    Demonstrate events in NATS and Spark.

    Starts a temporary nats-server and a local Spark, publishes a few hundred events and invalid messages, receives
    them, captures them, and decodes the capture to columns. The exit status is 0 if all steps give the same events and
    errors, else 1.
    """
    from ._demonstration import main  # here, so that other commands do not load it

    raise typer.Exit(main())
