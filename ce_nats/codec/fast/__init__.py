"""
Fast path: encode and decode common events at a fraction of the cost.

Most events of a stream have the same attributes in the same order, plain values, and values that occurred before. The
fast path handles only such events. For any other event it returns None, and the full codec (``attributes``, ``binary``,
``structured``) encodes or decodes the event, or raises the error. It may decline an event, never differ.

This folder can be deleted: the codec is then slower, with the same results. It is the only part of the codec that
trades clarity for speed, and uses three techniques:

- *Caches* (``_values``). A ``source`` or ``type`` that repeats is checked once. The caches are bounded.
- *One function for each sequence of names* (``_compile``, ``_frames``). It is compiled from generated source text,
  as in ``dataclasses``, after the sequence occurred several times; it handles the names one after the other, without a
  loop. Closures in place of it take a fifth longer.
- *One check of many values*, by functions in C that were written for another purpose.

This function encodes the headers of events with the four required attributes. ``source_texts`` and ``type_texts`` are
caches of header values; ``NotHandled`` makes the fast path return None::

    def convert(attributes):
        v0, v1, v2, v3 = attributes.values()
        if not (v0.__class__ is v1.__class__ is v2.__class__ is v3.__class__ is str):
            raise NotHandled
        if not (v0 == "1.0"):
            raise NotHandled
        if not (v1):
            raise NotHandled
        if not is_literal(f"{v1}"):
            v1, = escape_all((v1,))
        return [('ce-specversion', v0), ('ce-id', v1), ('ce-source', source_texts[v2]), ('ce-type', type_texts[v3])]

``python -m ce_nats.codec.fast id source type time`` prints the functions for other attributes.
"""

from ._blocks import block_decoder as block_decoder
from ._decode import decode as decode
from ._encode import encode_event as encode_event
from ._encode import encode_headers as encode_headers
from ._frames import encode_block as encode_block
