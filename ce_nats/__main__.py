"""Start of ``ce-nats`` and ``python -m ce_nats``. Without the extra ``cli``, it prints how to install it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable


def main(on_start: Callable[[], None] | None = None) -> None:
    """Run the command line."""
    try:
        from .cli import app, escape_terminals
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        print("ce-nats: the command line needs the extra cli: pip install 'ce-nats[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    escape_terminals()
    try:
        app(obj=on_start)
    except Exception:  # a bug
        sys.stderr.write(traceback.format_exc())  # not by the interpreter, whose colours would be escaped
        raise SystemExit(1) from None


if __name__ == "__main__":
    from _ce_nats_command import main as start

    start()
