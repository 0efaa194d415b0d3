"""Change inputs at random, seeded. Called for every input, so it is written for speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tests.support import damage

_BYTES = [bytes([code]) for code in range(256)]
# The same texts as in the random messages of the ordinary tests, and lengths and keys of binary formats.
TOKENS = [
    *(text.encode() for text in [*damage.MUTATIONS, *damage.TOKENS, *damage.VALUES, *damage.CONTENT_TYPES]),
    *(f'"{name}":'.encode() for name in damage.NAMES),
    *(f"\nce-{name}:".encode() for name in damage.NAMES),
    *damage.NOT_UTF8,
    *(b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x01\0\0\0", b"\x80" * 9 + b"\x01", b"\r\n", b"\n\n"),
    *(b"{type}", b"{x:tokens}", b"{partition(8,id)}", b".", b"*>", b"nats-obj:", b"/", b"MSG a 1 1\r\n"),
]
TOKENS = [token for token in TOKENS if len(token) <= 32]
MAX_SIZE = 4096


class Mutator:
    """
    Inputs made from others.

    Args:
        pool: Inputs to change; inputs may be appended later.
        seed: Seed of all random choices.
    """

    def __init__(self, pool: Sequence[bytes], seed: int) -> None:
        self.pool = [*pool] or [b""]
        self._rng = Random(seed)
        self._changes = (self._replace, self._replace, self._insert, self._insert, self._delete, self._copy, self._cut)

    def batch(self, count: int, few: int = 0) -> list[bytes]:
        """Return inputs, made from the whole pool or from only a few of its inputs."""
        random, pool = self._rng.random, self.pool
        if few:
            pool = [pool[int(random() * len(pool))] for _ in range(few)]
        return list(self._changed(pool, count))

    def long(self, size: int) -> bytes:
        """Return an input of about a size with a repeated piece: code of more than linear time takes long for it."""
        random = self._rng.random
        data = self.pool[int(random() * len(self.pool))]
        start = int(random() * len(data))
        piece = data[start : start + 1 + int(random() * 2 ** (6 * random()))] or b"a"
        count = max(size - len(data), 0) // len(piece)
        return data[:start] + piece * count + data[start:]

    def _changed(self, pool: list[bytes], count: int) -> Iterator[bytes]:
        random, changes, kinds = self._rng.random, self._changes, len(self._changes)
        for _ in range(count):
            data = pool[int(random() * len(pool))]
            data = changes[int(random() * kinds)](data)
            while random() < 0.4:
                data = changes[int(random() * kinds)](data)
            yield data[:MAX_SIZE]

    def _replace(self, data: bytes) -> bytes:
        place = int(self._rng.random() * len(data))
        return data[:place] + _BYTES[int(self._rng.random() * 256)] + data[place + 1 :]

    def _insert(self, data: bytes) -> bytes:
        random = self._rng.random
        place = int(random() * (len(data) + 1))
        return data[:place] + TOKENS[int(random() * len(TOKENS))] + data[place + int(random() * 2) :]

    def _delete(self, data: bytes) -> bytes:
        random = self._rng.random
        place = int(random() * (len(data) + 1))
        return data[:place] + data[place + 1 + int(random() * 8) :]

    def _copy(self, data: bytes) -> bytes:
        """Insert a piece of another input, or of the same."""
        random = self._rng.random
        other = self.pool[int(random() * len(self.pool))] if random() < 0.5 else data
        start, place = int(random() * (len(other) + 1)), int(random() * (len(data) + 1))
        return data[:place] + other[start : start + int(random() * 64)] + data[place:]

    def _cut(self, data: bytes) -> bytes:
        return data[: int(self._rng.random() * (len(data) + 1))]
