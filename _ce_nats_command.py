"""
Entry point of ``ce-nats``. It is outside of the package, so that signals are handled before the package is imported.

The imports take most of the time in which a command starts. A KeyboardInterrupt in them would print a traceback, and
libraries convert it to other errors. So this module has only the imports that the interpreter already has: ``signal``
and ``typing`` alone take long enough to be interrupted.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

# Exit status after a signal, minus the signal number.
_SIGNAL_BASE = 128
# A program such as nohup, or a shell, may have set other handlers.
_DEFAULTS = {_signal.SIGINT: _signal.default_int_handler, _signal.SIGTERM: _signal.SIG_DFL}


def main() -> None:
    """Run the command line; SIGINT and SIGTERM end it at once until a command begins."""
    replaced = [number for number, default in _DEFAULTS.items() if _signal.getsignal(number) == default]
    for number in replaced:
        _signal.signal(number, _exit)

    def restore() -> None:
        for number in replaced:
            _signal.signal(number, _DEFAULTS[number])

    from ce_nats.__main__ import main as run

    run(restore)


def _exit(number: int, _: FrameType | None) -> NoReturn:
    os._exit(_SIGNAL_BASE + number)
