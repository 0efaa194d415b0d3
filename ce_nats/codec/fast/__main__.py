"""
Print the functions that the fast path compiles for events with these attributes.

``python -m ce_nats.codec.fast id source type``
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..attributes import REQUIRED, are_valid_names
from ..mode import PREFIX
from ._compile import header_decoder_source, header_encoder_source, member_encoder_source
from ._frames import block_encoder_source


def functions(names: Sequence[str]) -> str:
    """
    Return the source text of the functions for attributes, each after a comment.

    Raises:
        ValueError: No event can have these attributes.
    """
    if "specversion" not in names:
        names = ("specversion", *names)
    if not are_valid_names(names):
        raise ValueError(f"attributes must be valid, distinct and include {', '.join(REQUIRED)}, got {' '.join(names)}")
    headers = [PREFIX + name for name in names]
    return "\n\n".join(
        (
            f"# Headers from attributes\n{header_encoder_source(names)}",
            f"# Header block from attributes\n{block_encoder_source(names, has_message_id=True)}",
            f"# JSON event without data from attributes\n{member_encoder_source(names)}",
            f"# Attributes from headers\n{header_decoder_source(headers)}",
        )
    )


def main() -> None:
    try:
        print(functions(sys.argv[1:]))
    except ValueError as error:
        sys.exit(f"python -m ce_nats.codec.fast: {error}")


if __name__ == "__main__":
    main()
