"""``python -m ce_nats``, and the entry point of ``ce-nats``: the command line, or how to install what it needs."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    try:
        from .cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        print("ce-nats: the command line is an extra of its own: pip install 'ce-nats[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    app()


if __name__ == "__main__":
    main()
