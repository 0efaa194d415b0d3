"""
The command line, ``ce-nats``. Needs the extra ``cli``.

Results go to standard output, progress and complaints to standard error: a complaint is one line, ``ce-nats: code:
text``. Exit status: 0 for yes; 1 for no, and for input that is refused (EncodeError, DecodeError); 2 where the question
could not be asked: wrong usage, files that cannot be read or written; 3 where NATS did not do its part (DeliveryError);
130 and 143 after Ctrl-C and SIGTERM, but 0 where that is how a command ends, ``sub``, ``top``, and ``capture``
without ``--stream``; 141 where the reader of the output has closed the pipe.

Modules hold a command or a few that belong together; all of them build on the library and add no rules of their own.
"""

from . import captures, codec, conformance, deadletters, demo, explain, migration, top, traffic
from .program import app

__all__ = ["app"]

for _module in (codec, explain, traffic, top, captures, deadletters, migration, conformance, demo):
    _module.register(app)
