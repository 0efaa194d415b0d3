"""
Output to terminals, which text of messages, files and servers cannot control.

Everything that reaches a terminal goes through :func:`ce_nats.errors.visible`. Text for users is printed with
:func:`print_to_stderr` and :func:`console`. All other output (JSON, tracebacks, warnings, messages of libraries) is
escaped as well, because :func:`escape_terminals` replaces standard output and standard error with streams that escape
what is written to them. Output to a pipe or a file is not changed.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable
from typing import Any, Final, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ..errors import visible

_WIDE: Final = 10_000


def print_to_stderr(text: str) -> None:
    """Print a line for users on standard error, with control characters escaped."""
    print(
        visible(text), file=sys.stderr
    )  # rich redirects print() while it draws; typer.echo() would write into the drawing


def console(*, stderr: bool = False) -> Console:
    """Return a console, as wide as the terminal or $COLUMNS; without these, lines are not wrapped."""
    stream = sys.stderr if stderr else sys.stdout
    output = _Console(
        file=getattr(stream, "unescaped", stream),
        highlight=False,
        markup=False,
        emoji=False,
        # With NO_COLOR, rich itself would still print bold text.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )
    if not output.is_terminal and "COLUMNS" not in os.environ:
        output.width = _WIDE
    return output


def table(*columns: str) -> Table:
    """Return an empty table without borders, whose cells are wrapped instead of truncated."""
    made = Table(box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def escape_terminals() -> None:
    """Replace standard output and standard error, if they are terminals, with streams that escape their input."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # for encodings other than UTF-8; standard error does so by default
    sys.stdout, sys.stderr = map(_escaping, (sys.stdout, sys.stderr))


def _escaping(stream: TextIO) -> TextIO:
    return cast(TextIO, _EscapingStream(stream)) if stream.isatty() else stream


def _escaped(text: str) -> str:
    """Return text of several lines, with everything escaped that a terminal interprets."""
    return text if text.isprintable() else "\n".join("\t".join(map(visible, line.split("\t"))) for line in _lines(text))


def _lines(text: str) -> list[str]:
    return [line.removesuffix("\r") for line in text.split("\n")]


class _Console(Console):
    """A console that escapes text: strings before they are measured, everything else before it is written."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(_escaped(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_text = segment.control is None
            yield Segment(_escaped(segment.text), segment.style) if is_text else segment

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that is being handled; rich would exit with status 1


class _EscapingStream:
    """
    A text stream to a terminal that escapes what is written to it.

    Attributes:
        unescaped: The original stream, to which a console writes colours.
        buffer: Binary stream, which escapes its input, too.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unescaped = stream
        self.buffer = _EscapingBuffer(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)

    def write(self, text: str) -> int:
        """Write text."""
        self.unescaped.write(_encodable(_escaped(text), self.unescaped.encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)


class _EscapingBuffer:
    """The binary stream of an :class:`_EscapingStream`; each call of ``write`` must have complete characters."""

    def __init__(self, stream: _EscapingStream) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream.unescaped.buffer, name)

    def write(self, octets: bytes) -> int:
        """Write bytes, usually UTF-8."""
        self._stream.write(bytes(octets).decode("utf-8", "backslashreplace"))
        return len(octets)

    def flush(self) -> None:
        """Flush the terminal."""
        self._stream.unescaped.flush()


def _encodable(text: str, encoding: str) -> str:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in text)
    return text
