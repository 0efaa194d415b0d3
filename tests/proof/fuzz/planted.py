"""A target with a fault that only guidance by coverage finds soon. It is imported by a worker, which has Atheris."""

# ruff: noqa: SIM102

import atheris

from tests.proof.fuzz.target import Target, one_by_one


@atheris.instrument_func
def fails_for_a_word(data: bytes) -> None:
    """Have a branch for each character."""
    if data[:1] == b"w":
        if data[1:2] == b"o":
            if data[2:3] == b"r":
                if data[3:4] == b"d":
                    raise KeyError("planted")


TARGETS = {"planted": Target("planted", "", one_by_one(fails_for_a_word), lambda: [b"abcd"])}
