"""``python -m ce_nats``, and the entry point of ``ce-nats``. Without the ``cli`` extra it prints how to install it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from .cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        print("ce-nats: the command line needs the extra cli: pip install 'ce-nats[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    app()


if __name__ == "__main__":
    main()
