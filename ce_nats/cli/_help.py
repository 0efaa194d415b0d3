"""Help in sections: those that typer only has with rich, as plain text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose options have the sections of their ``rich_help_panel``."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write all parameters that have a help text."""
        rows = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record is not None:
                rows.append((getattr(parameter, "rich_help_panel", None) or usual, record))
        # After its own options, those that many commands have; typer adds --help at the end.
        _write_sections(formatter, sorted(rows, key=lambda row: row[0] not in ("Arguments", "Options")))


class Group(TyperGroup):
    """A group whose commands have the sections of their ``rich_help_panel``."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the first line of the help of each command."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        limit = formatter.width - 6 - max(map(len, commands))
        rows = [
            (getattr(command, "rich_help_panel", None) or "Commands", (name, command.get_short_help_str(limit)))
            for name, command in commands.items()
            if command is not None
        ]
        _write_sections(formatter, rows)


class Program(typer.Typer):
    """A program, or a part of it, whose commands are :class:`Command`."""

    def __init__(self, *, cls: type[Group] = Group, **options: Any) -> None:
        super().__init__(
            cls=cls, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, **options
        )

    def command(self, name: str | None = None, **options: Any) -> Any:
        """As the method of typer."""
        return super().command(name, cls=Command, **options)


def _write_sections(formatter: Any, rows: Iterable[tuple[str, tuple[str, str]]]) -> None:
    """Write rows in sections, in the order of the first row of each."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for title, row in rows:
        sections.setdefault(title, []).append(row)
    for title, found in sections.items():
        with formatter.section(title):
            formatter.write_dl(found)
