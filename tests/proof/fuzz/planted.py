"""A fault that only guidance by coverage finds soon, and a crash. Imported by a worker, which has Atheris."""

# ruff: noqa: SIM102

import os
import signal

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


def crashes(data: bytes) -> None:
    if data == b"crash":
        os.kill(os.getpid(), signal.SIGSEGV)


TARGETS = {
    "planted": Target("planted", "", one_by_one(fails_for_a_word), lambda: [b"abcd"]),
    "crash": Target("crash", "", one_by_one(crashes), lambda: [b"abcd", b"crash"]),
}
