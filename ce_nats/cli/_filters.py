"""The option --filter: only some events, selected by an expression of CloudEvents SQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import typer

from .. import cesql
from ..cesql._evaluate import MISSING, EvaluationError, compiled, zero
from ..cesql._syntax import Literal, Node
from ..codec.binary import Dialect
from ..codec.binding import from_nats_message
from ..codec.event import DecodedEvent
from ..errors import CeNatsError
from ..message import Headers, NatsMessage
from ._arguments import InputError

FilterOption = Annotated[
    str | None,
    typer.Option("--filter", "--where", metavar="CESQL", help="Only events that pass this CloudEvents SQL expression."),
]


def read_filter(text: str | None) -> cesql.Expression | None:
    """
    Return the expression of the option.

    Raises:
        InputError: It is not an expression.
    """
    try:
        return None if text is None else cesql.compile(text)
    except cesql.ParseError as error:
        raise InputError(f"--filter is not an expression of CloudEvents SQL: {error}") from error


def passes(
    expression: cesql.Expression | None,
    headers: Iterable[tuple[str, str]],
    data: bytes,
    *,
    dialect: Dialect = Dialect.SPEC,
) -> bool:
    """Return whether the event in a message passes; a message that is not an event does."""
    if expression is None:
        return True
    try:
        event = from_nats_message(NatsMessage("", data, Headers(headers)), dialect=dialect, parse_data=False)
    except CeNatsError:
        return True
    return expression.matches(event)


def selects(expression: cesql.Expression | None, event: DecodedEvent | None) -> bool:
    """Return whether an event is selected; a message that is not an event is not, if there is an expression."""
    return expression is None or (event is not None and expression.matches(event))


def evaluation(expression: cesql.Expression, event: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return JSON values that show an evaluation on the members of an event in JSON.

    ``passes``, ``value``, ``errors`` of the whole expression; ``parts`` with ``depth``, ``text``, ``value`` and the
    ``errors`` of each part that is not a literal, from the whole to its smallest parts.
    """
    result = expression.evaluate(event)
    return {
        "passes": result.value is True and not result.errors,
        "value": result.value,
        "errors": [str(error) for error in result.errors],
        "parts": list(_parts(expression._tree, event, 0)),
    }


def _parts(node: Node, event: Mapping[str, Any], depth: int) -> Iterator[dict[str, Any]]:
    """Yield a part and the parts in it; an error belongs to the smallest part that has it."""
    if isinstance(node, Literal):
        return
    inner = [part for child in node.children for part in _parts(child, event, depth + 1)]
    errors: list[EvaluationError] = []

    def note(error: EvaluationError, value: Any) -> Any:
        errors.append(error)
        return value

    value = compiled(node)(event, note)
    known = {error for part in inner for error in part["errors"]}
    own = [str(error) for error in errors if str(error) not in known]
    yield {"depth": depth, "text": str(node), "value": zero(node) if value is MISSING else value, "errors": own}
    yield from inner


def lines_of(shown: dict[str, Any]) -> Iterator[str]:
    """Return the evaluation as lines of text."""
    yield f"filter: {'passes' if shown['passes'] else 'does not pass'}"
    for part in shown["parts"]:
        value = repr(part["value"]) if isinstance(part["value"], str) else str(part["value"]).upper()
        errors = "".join(f"; {error}" for error in part["errors"])
        yield f"{'  ' * part['depth']}  {part['text']}: {value}{errors}"
