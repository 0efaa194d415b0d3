"""The test kit of CESQL, in the copy of the Go module, which has corrected one case of the specification's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from ce_nats import cesql
from tests.support.caching import available
from tests.support.programs import go_source

EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "s"}
# Names of errors in the kit.
KINDS = {
    "missingAttribute": "missing-attribute",
    "missingFunction": "missing-function",
    "functionEvaluation": "function-evaluation",
}
functions = cesql.Functions()


@functions.add
def hasprefix(text: str, prefix: str) -> bool:
    return text.startswith(prefix)


@functions.add
def konkat(*texts: str) -> str:
    return "".join(texts)


class Loader(yaml.SafeLoader):
    """YAML whose timestamps are text."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def cases_of(source: Path) -> Iterator[dict[str, Any]]:
    for path in [*source.glob("test/tck/*.yaml"), *source.glob("runtime/test/tck/*.yaml")]:
        content = path.read_bytes()
        for case, texts in zip(
            yaml.load(content, Loader)["tests"], yaml.load(content, yaml.BaseLoader)["tests"], strict=True
        ):
            yield {**case, "expression": texts["expression"]}


def fault(case: dict[str, Any]) -> str | None:
    """Return what is wrong with the result of a case."""
    event = (case.get("event") or EVENT) | (case.get("eventOverrides") or {})
    error = case.get("error")
    try:
        result = cesql.compile(case["expression"], functions=functions).evaluate(event)
    except cesql.ParseError as wrong:
        return None if error == "parse" else str(wrong)
    kinds = [KINDS.get(error, error)] if error else []
    value = case.get("result", result.value)
    if [each.kind for each in result.errors] != kinds or result.value != value or type(result.value) is not type(value):
        return f"{case['expression']}: {result}"
    return None


def test_kit() -> None:
    """All cases, those of user-defined functions included."""
    source = available(lambda: go_source("github.com/cloudevents/sdk-go/sql/v2@v2.16.2"), "test kit of CESQL")
    cases = list(cases_of(source))
    assert len(cases) == 275 + 8
    assert [problem for problem in map(fault, cases) if problem] == []


@pytest.mark.parametrize(
    "change", [{"result": "true"}, {"result": 1}, {"error": "cast"}, {"error": "parse"}, {"expression": "("}]
)
def test_kit_can_fail(change: dict[str, Any]) -> None:
    """A case with another result, type or error is a fault."""
    case = {"expression": "1 = 1", "result": True}
    assert fault(case) is None
    assert fault(case | change)
