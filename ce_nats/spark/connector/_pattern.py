"""
Patterns of stream names.

RE2, which is a part of pyarrow, matches in linear time; a pattern such as ``(a+)+b`` would stop Python's ``re`` for
years on a name of 255 characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import preview, shortened


@dataclass(frozen=True, slots=True)
class StreamPattern:
    """A regular expression that a stream name has to match as a whole."""

    text: str

    def check(self) -> None:
        """
        Check the syntax.

        Raises:
            ValueError: The text is not a regular expression.
        """
        import pyarrow as pa

        for expression in (self.text, self._whole):  # \Q without \E is valid only on its own
            try:
                _matches([""], expression)
            except pa.ArrowInvalid as error:
                reason = str(error).removeprefix("Invalid regular expression: ")
                raise ValueError(
                    "option streamPattern must be a regular expression in the syntax of RE2, "
                    f"got {preview(self.text)}: {shortened(reason)}"
                ) from error

    def matching(self, names: Sequence[str]) -> list[str]:
        """Return the names that match, in order."""
        return [name for name, matches in zip(names, _matches(names, self._whole)) if matches] if names else []

    @property
    def _whole(self) -> str:
        return rf"\A(?:{self.text})\z"


def _matches(names: Sequence[str], expression: str) -> list[bool]:
    import pyarrow as pa
    import pyarrow.compute as pc

    found: list[bool] = pc.match_substring_regex(pa.array(names, pa.string()), expression).to_pylist()
    return found
