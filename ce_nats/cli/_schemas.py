"""The option ``--schema``: JSON Schemas of the data of events, in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..schemas import Schemas
from ._arguments import InputError, usage_errors

SchemaOption = Annotated[
    list[str] | None,
    typer.Option(
        "--schema",
        metavar="[TYPE=]FILE",
        help="JSON Schema of the data of events, or of those of a TYPE such as com.example.*; may be repeated.",
    ),
]


def read_schemas(given: list[str] | None) -> Schemas | None:
    """
    Return the schemas of the command line; None if there are none.

    Raises:
        InputError: A file is not a JSON Schema, or a type is not valid or duplicated.
        OSError: A file cannot be read.
        ImportError: The extra ``schemas`` is not installed.
    """
    if not given:
        return None
    schemas: dict[str, Any] = {}
    for text in given:
        pattern, equals, name = text.partition("=")
        if not equals:
            pattern, name = "*", text
        if pattern in schemas:
            raise InputError(f"--schema must be given once for each type, got {pattern!r} again")
        try:
            schemas[pattern] = json.loads(Path(name).read_bytes())
        except (ValueError, RecursionError) as error:
            raise InputError(f"--schema must be a file with a JSON Schema, got {name!r}: {error}") from error
    with usage_errors():
        return Schemas(schemas)
