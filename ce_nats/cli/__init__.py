"""
The command line, ``ce-nats``. Needs the extra ``cli``.

Results are written to standard output, progress and errors to standard error. An error is one line, ``ce-nats: code:
text``. Exit status: 0 for success; 1 for a negative result, or invalid input (EncodeError, DecodeError); 2 for wrong
usage, files that cannot be read or written, and missing packages; 3 for errors of NATS (DeliveryError); 130 after
Ctrl-C and 143 after SIGTERM, but 0 for commands that run until then, ``sub``, ``top``, and ``capture`` without
``--stream``; 141 if the reader of standard output closed the pipe.

Each module has one command, or a few related ones. They use the library, and have no rules for events of their own.
"""

from . import _captures as captures
from . import _codec as codec
from . import _conformance as conformance
from . import _deadletters as deadletters
from . import _demo as demo
from . import _explain as explain
from . import _migration as migration
from . import _top as top
from . import _traffic as traffic
from ._program import app as app
from ._terminal import escape_terminals as escape_terminals

for _module in (codec, explain, traffic, top, captures, deadletters, migration, conformance, demo):
    _module.register(app)
