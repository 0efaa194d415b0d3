"""
The command line, ``ce-nats``. Needs the extra ``cli``.

Results are written to standard output, progress and errors to standard error. An error is one line, ``ce-nats: code:
text``. Exit status: 0 for success; 1 for a negative result, or invalid input (EncodeError, DecodeError); 2 for wrong
usage, files that cannot be read or written, and missing packages; 3 for errors of NATS (DeliveryError); 130 after
Ctrl-C and 143 after SIGTERM, but 0 for commands that run until they are stopped (``sub``, ``top``, and ``capture``
without ``--stream``); 141 if the reader of standard output closed the pipe.

Each module has one command, or a few related ones. Commands use the library, and implement no rules for events.
"""

from . import (
    _captures,
    _check,
    _codec,
    _conformance,
    _dead_letters,
    _demo,
    _explain,
    _find,
    _migration,
    _pub,
    _stream_settings,
    _sub,
    _top,
)
from ._program import app as app
from ._terminal import escape_terminals as escape_terminals

for _module in (
    _codec,
    _explain,
    _find,
    _check,
    _pub,
    _sub,
    _top,
    _captures,
    _dead_letters,
    _stream_settings,
    _migration,
    _conformance,
    _demo,
):
    _module.register(app)
