"""The command ``demo``: events in NATS and Spark."""

from __future__ import annotations

import typer

from ._program import with_exit_status


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_exit_status(demo))


def demo() -> None:
    """
    Demonstrate events in NATS and Spark.

    Starts a temporary nats-server and a local Spark, publishes a few hundred events and invalid messages, receives
    them, captures them, and decodes the capture to columns. The exit status is 0 if all steps have the same events and
    errors, else 1.
    """
    from ._demo_steps import main  # imported here, because other commands do not need it

    raise typer.Exit(main())
