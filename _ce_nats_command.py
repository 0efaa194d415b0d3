"""
Entry point of ``ce-nats``. It is outside of the package, so that signals are handled before the package is imported.

The imports take most of the time in which a command starts. A KeyboardInterrupt in them would print a traceback, and
libraries convert it to other errors.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any, Final, NoReturn

# Exit status after a signal, minus the signal number.
_SIGNAL_BASE: Final = 128
# A program such as nohup, or a shell, may have set other handlers.
_DEFAULTS: Final[dict[signal.Signals, Any]] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


def main() -> None:
    """Run the command line; SIGINT and SIGTERM end it at once until a command begins."""
    replaced = [number for number, default in _DEFAULTS.items() if signal.getsignal(number) == default]
    for number in replaced:
        signal.signal(number, _exit)

    def restore() -> None:
        for number in replaced:
            signal.signal(number, _DEFAULTS[number])

    from ce_nats.__main__ import main as run

    run(restore)


def _exit(number: int, _: FrameType | None) -> NoReturn:
    os._exit(_SIGNAL_BASE + number)
