"""
Comparison of answers, running of other programs, and the commands ``conformance`` and ``answer``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from time import monotonic
from typing import Any

import pytest
from typer.testing import CliRunner

from ce_nats.cli import app
from ce_nats.conformance import (
    Case,
    Command,
    CommandError,
    Result,
    answer,
    answer_lines,
    expand,
    judge,
    load_cases,
    matches,
)
from tests.support.tables import each

ROOT = Path(__file__).parents[1]

# A program for --exec. It decodes percent-escapes with a function of the standard library, which passes some cases and
# fails others; for a million escapes that would take a second. Special values make it misbehave.
PEER = """
import json, sys, time
from urllib.parse import unquote

print("ready", file=sys.stderr)
for line in sys.stdin:
    case = json.loads(line)
    value = case["input"].get("value")
    answer = {"id": case["id"]}
    if value == "crash":
        print("fatal error", file=sys.stderr)
        sys.exit(3)
    if value == "hang":
        time.sleep(600)
    if value in ("Hello!", "[1]", "NaN", ""):
        print(value, flush=True)
        continue
    if value == "cut":
        print('{"result"', end="", flush=True)
        sys.exit(0)
    if value == "late":
        answer["id"] = "some-other-case"
    if value == "skip":
        answer["skipped"] = "not done yet"
    elif value == "refuse" or case["op"] != "percent.decode" or str(value).count("%") > 1000:
        answer["error"] = "I refuse"
    elif value == "both":
        answer |= {"result": {"text": value}, "error": "or not"}
    elif value != "neither":
        answer["result"] = {"text": unquote(value)}
    if value == "anonymous":
        del answer["id"]
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def peer(tmp_path: Path) -> str:
    """Return the command line of the program above."""
    script = tmp_path / "peer.py"
    script.write_text(PEER, encoding="utf-8")
    return f"{quote(sys.executable)} {quote(str(script))}"


@pytest.fixture
def program(peer: str) -> Iterator[Command]:
    """Yield the program above, which starts with the first case."""
    with Command(peer, timeout=60) as command:
        yield command


def decode_case(value: str, *outcomes: dict[str, Any]) -> Case:
    """Return a case of ``percent.decode``; by default, the value itself is expected."""
    return Case(
        suite="made-up",
        id=f"case-{value}",
        op="percent.decode",
        level="MUST",
        description="a value",
        requirements=("NB-3.1.3.2-07",),
        input={"value": value},
        outcomes=outcomes or ({"expected": {"text": value}},),
        source={},
    )


# --- What counts as equal -------------------------------------------------------------------------------------------

DECODED = "from_nats_message"
ENCODED = "to_nats_message"


def attributes(**tagged: list[str]) -> dict[str, Any]:
    return {"attributes": {name: {"type": kind, "value": value} for name, (kind, value) in tagged.items()}}


@pytest.mark.parametrize(
    ("op", "one", "other"),
    [
        pytest.param(DECODED, {"data": {"text": "a"}}, {"data": {"text": "a"}}, id="text"),
        pytest.param(
            DECODED, {"data": {"json": {"a": 1, "b": 2}}}, {"data": {"json": {"b": 2, "a": 1}}}, id="member-order"
        ),
        pytest.param(
            DECODED,
            {"data": {"base64": "YWE="}},
            {"data": {"repeat": {"text": "a"}, "times": 2}},
            id="bytes-in-two-spellings",
        ),
        pytest.param(
            DECODED, attributes(source=["URI-reference", "/s"]), attributes(source=["String", "/s"]), id="uri"
        ),
        pytest.param(ENCODED, {"data": {"text": "é"}}, {"data": {"base64": "w6k="}}, id="payload-in-two-spellings"),
        pytest.param(
            ENCODED,
            {"headers": [["ce-id", "1"], ["X", "y"], ["ce-type", "t"]]},
            {"headers": [["ce-type", "t"], ["ce-id", "1"], ["X", "y"]]},
            id="order-of-ce-headers",
        ),
        pytest.param("percent.decode", {"text": {"utf16": "D83DDE00"}}, {"text": "\U0001f600"}, id="utf16"),
        pytest.param(
            "wire.nats.decode_frames",
            {"frames": [{"op": "MSG", "reply": None, "payload": {"text": "a"}}]},
            {"frames": [{"op": "MSG", "payload": {"base64": "YQ=="}}]},
            id="null-and-absent-in-frames",
        ),
    ],
)
def test_equal_results_match(op: str, one: Any, other: Any) -> None:
    """Two spellings of the same result match, in both directions."""
    assert matches(op, one, other)
    assert matches(op, other, one)


@pytest.mark.parametrize(
    ("op", "one", "other"),
    [
        pytest.param(DECODED, {"data": {"json": 1}}, {"data": {"json": 1.0}}, id="integer-and-float"),
        pytest.param(DECODED, {"data": {"json": 1}}, {"data": {"json": True}}, id="integer-and-boolean"),
        pytest.param(DECODED, {"data": {"json": [0]}}, {"data": {"json": [False]}}, id="nested-boolean"),
        pytest.param(DECODED, {"data": {"json": "1"}}, {"data": {"json": 1}}, id="string-and-number"),
        pytest.param(DECODED, {"data": {"json": [1, 2]}}, {"data": {"json": [1, 2, 3]}}, id="longer-array"),
        pytest.param(DECODED, {"data": {"json": {"a": None}}}, {"data": {"json": {}}}, id="null-and-missing-member"),
        pytest.param(DECODED, {"data": {"json": None}}, {"data": {"absent": True}}, id="null-and-absent"),
        pytest.param(DECODED, {"data": {"json": "a"}}, {"data": {"text": "a"}}, id="json-string-and-text"),
        pytest.param(DECODED, {"data": {"text": "a"}}, {"data": {"base64": "YQ=="}}, id="text-and-bytes"),
        pytest.param(DECODED, {"data": {"text": "é"}}, {"data": {"text": "e\u0301"}}, id="normalisation"),
        pytest.param(DECODED, attributes(a=["String", "1"]), attributes(a=["Integer", "1"]), id="attribute-type"),
        pytest.param(
            DECODED,
            attributes(time=["Timestamp", "2020-01-01T00:00:00Z"]),
            attributes(time=["Timestamp", "2020-01-01T01:00:00+01:00"]),
            id="one-instant-two-texts",
        ),
        pytest.param(DECODED, attributes(a=["String", "1"]), attributes(), id="missing-attribute"),
        pytest.param(ENCODED, {"headers": [["ce-id", "1"]]}, {"headers": [["ce-ID", "1"]]}, id="case-of-a-name"),
        pytest.param(ENCODED, {"headers": [["ce-a", "1"]]}, {"headers": [["ce-a", "1"], ["ce-a", "1"]]}, id="repeat"),
        pytest.param(
            ENCODED, {"headers": [["X", "1"], ["Y", "2"]]}, {"headers": [["Y", "2"], ["X", "1"]]}, id="order-of-others"
        ),
        pytest.param(
            "headers.append",
            {"headers": [["ce-a", "1"], ["ce-a", "2"]]},
            {"headers": [["ce-a", "2"], ["ce-a", "1"]]},
            id="order-within-a-name",
        ),
        pytest.param(ENCODED, {"headers": []}, {"headers": [], "data": {"text": ""}}, id="missing-field"),
    ],
)
def test_different_results_do_not_match(op: str, one: Any, other: Any) -> None:
    """Different results do not match, in both directions."""
    assert not matches(op, one, other)
    assert not matches(op, other, one)
    assert matches(op, one, one)


def test_repeats_are_expanded() -> None:
    """Repeats are expanded everywhere, except in data that looks like a repeat."""
    given = {
        "value": {"repeat": "ab", "times": 3, "prefix": "<", "suffix": ">"},
        "data": {"repeat": {"base64": "/w=="}, "times": 2, "suffix": {"repeat": {"text": "]"}, "times": 2}},
        "headers": [["a", {"repeat": "x", "times": 4}], ["b", {"utf16": "D800"}]],
        "event": {"data": {"json": {"repeat": "x", "times": 2}}},
        "mode": None,
    }
    assert expand(given) == {
        "value": "<ababab>",
        "data": {"base64": "//9dXQ=="},
        "headers": [["a", "xxxx"], ["b", {"utf16": "D800"}]],
        "event": {"data": {"json": {"repeat": "x", "times": 2}}},
        "mode": None,
    }


# --- Judging --------------------------------------------------------------------------------------------------------


def test_codes_are_compared_for_ce_nats_only() -> None:
    """ce_nats must return the expected code, other implementations any error."""
    case = decode_case("%", {"error": "invalid-percent-escape"})
    other = {"error": "invalid-utf8"}
    assert judge(case, other, compare_codes=True).result is Result.FAILED
    assert judge(case, other, compare_codes=False).result is Result.PASSED
    assert judge(case, answer(case.op, case.input), compare_codes=True).result is Result.PASSED


def test_each_accepted_outcome_passes() -> None:
    """If the specification allows a choice, each listed outcome passes, and no other."""
    case = decode_case("a", {"expected": {"text": "a"}}, {"expected": {"text": "b"}}, {"error": "invalid-utf8"})
    answers: list[Any] = [{"result": {"text": "a"}}, {"result": {"text": "b"}}, {"error": "invalid-utf8"}]
    assert [judge(case, one, compare_codes=True).result for one in answers] == [Result.PASSED] * 3
    assert judge(case, {"result": {"text": "c"}}, compare_codes=True).result is Result.FAILED


@each(
    ("header", "passes"),
    [
        (["Content-Type", "application/cloudevents+json"], True),
        (["content-type", "Application/CloudEvents+JSON; charset=UTF-8"], True),
        (["Content-Type", "application/json"], False),
        (["Content-Types", "application/cloudevents+json"], False),
    ],
)
def test_equivalent_content_types_of_other_programs_pass(header: list[str], passes: bool) -> None:
    """In structured mode, except for ce_nats itself, and in the case about its spelling."""
    cases = {case.id: case for case in load_cases(["structured-mode"])}
    event, own = cases["write-json-event"], cases["write-json-one-header"]
    assert "A-34" in own.requirements
    expected = {case.id: case.outcomes[0]["expected"] for case in (event, own)}
    got = {case.id: {"result": {**expected[case.id], "headers": [header]}} for case in (event, own)}
    is_ours = header == expected[event.id]["headers"][0]
    results = [
        judge(event, got[event.id], compare_codes=False).result,
        judge(event, got[event.id], compare_codes=True).result,
        judge(own, got[own.id], compare_codes=False).result,
    ]
    assert [result is Result.PASSED for result in results] == [passes, is_ours, is_ours]


@each(
    "got",
    [None, [], "a", {}, {"result": None}, {"result": {"text": 1}}, {"result": []}, {"results": {"text": "a"}}],
)
def test_malformed_answers_fail(got: Any) -> None:
    """An answer of the wrong form is a failure."""
    assert judge(decode_case("a"), got, compare_codes=False).result is Result.FAILED


def test_crash_is_not_an_expected_error() -> None:
    """If ce_nats crashes as a program under test, a case that expects an error fails as well."""
    line = json.dumps({"id": "x", "op": "percent.decode", "input": {}})
    (got,) = map(json.loads, answer_lines([line]))
    assert got == {"id": "x", "crashed": "KeyError: 'value'"}
    assert (
        judge(decode_case("%", {"error": "invalid-percent-escape"}), got, compare_codes=False).result is Result.FAILED
    )


def test_unknown_operation_is_skipped() -> None:
    """ce_nats as a program under test skips operations that it does not have."""
    (got,) = map(json.loads, answer_lines([json.dumps({"id": "x", "op": "percent.guess", "input": {}})]))
    assert "skipped" in got


# --- Programs -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_right_and_wrong_answers(program: Command) -> None:
    """Results are compared, an error passes if an error is expected, and a skipped case is neither."""
    assert program.run(decode_case("a%20b", {"expected": {"text": "a b"}})).result is Result.PASSED
    assert program.run(decode_case("anonymous")).result is Result.PASSED
    assert program.run(decode_case("refuse", {"error": "invalid-utf8"})).result is Result.PASSED
    assert program.run(decode_case("refuse")).result is Result.FAILED
    wrong = program.run(decode_case("%C0%A0", {"error": "invalid-utf8"}))
    assert (wrong.result, wrong.got["result"]) == (Result.FAILED, {"text": "\ufffd\ufffd"})
    skipped = program.run(decode_case("skip"))
    assert (skipped.result, skipped.problem) == (Result.SKIPPED, "not done yet")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param("crash", "the program exited with status 3: ready fatal error", id="crash"),
        pytest.param("cut", "the program exited with status 0: ready", id="cut-off"),
        pytest.param("Hello!", "the answer must be a line of JSON, got 'Hello!'", id="garbage"),
        pytest.param("NaN", "the answer must be a line of JSON, got 'NaN'", id="nan"),
        pytest.param("", "the answer must be a line of JSON, got ''", id="empty-line"),
        pytest.param("[1]", "the answer must be a JSON object, got '[1]'", id="array"),
        pytest.param("late", "the answer must have the id of the case, got 'some-other-case'", id="other-case"),
        pytest.param("both", "the answer must be an object with one of result, error and skipped", id="both"),
        pytest.param("neither", "the answer must be an object with one of result, error and skipped", id="neither"),
    ],
)
def test_invalid_answer_fails_only_its_case(program: Command, value: str, problem: str) -> None:
    """An invalid answer fails its case, and the next case is answered normally."""
    assert program.run(decode_case("before")).result is Result.PASSED
    verdict = program.run(decode_case(value))
    assert (verdict.result, verdict.problem) == (Result.FAILED, problem)
    assert program.run(decode_case("after")).result is Result.PASSED


@pytest.mark.slow
def test_hanging_program_is_restarted(peer: str) -> None:
    """A program that does not answer in time is killed and restarted."""
    with Command(peer, timeout=1) as program:
        verdict = program.run(decode_case("hang"))
        assert (verdict.result, verdict.problem) == (Result.FAILED, "no answer within 1 s")
        program._timeout = 60.0  # on a busy machine, starting takes long
        began = monotonic()
        assert program.run(decode_case("after")).result is Result.PASSED
        assert monotonic() - began < 60


@pytest.mark.slow
def test_program_that_does_not_read_is_killed() -> None:
    """A request larger than the buffer of a pipe does not block."""
    case = decode_case("a" * 4_000_000)
    with Command(f"{quote(sys.executable)} -c 'import time; time.sleep(600)'", timeout=1) as program:
        assert program.run(case).problem == "no answer within 1 s"


@pytest.mark.slow
def test_large_requests_and_answers(program: Command) -> None:
    """A megabyte is transferred in both directions."""
    assert program.run(decode_case("a" * 1_000_000)).result is Result.PASSED


@pytest.mark.slow
def test_program_that_never_answers_is_an_error(peer: str) -> None:
    """Ten cases without any answer are an error of the command, not ten failures."""
    with Command(peer, timeout=60) as program:
        for _ in range(9):
            assert program.run(decode_case("crash")).result is Result.FAILED
        with pytest.raises(CommandError, match="status 3"):
            program.run(decode_case("crash"))


@pytest.mark.slow
def test_program_that_stops_answering_fails_all_other_cases(peer: str) -> None:
    """After ten consecutive cases without an answer, all others fail without being run."""
    with Command(peer, timeout=60) as program:
        assert program.run(decode_case("before")).result is Result.PASSED
        for _ in range(10):
            assert program.run(decode_case("crash")).result is Result.FAILED
        verdict = program.run(decode_case("after"))
        assert (verdict.result, verdict.problem) == (Result.FAILED, "not run: no answer to 10 consecutive cases")


@each("command", ["", "/no/such/program", "'unfinished"])
def test_command_that_cannot_be_run_is_an_error(command: str) -> None:
    """It raises CommandError."""
    with pytest.raises(CommandError), Command(command) as program:
        program.run(decode_case("a"))


# --- The command line -----------------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    """Run ``ce-nats conformance``, wide enough for complete tables; return exit status and standard output."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["conformance", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def row(table: str, *cells: str) -> list[str]:
    """Return the remaining cells of the row that begins with ``cells``."""
    rows = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in table.splitlines() if "│" in line]
    (found,) = [found for found in rows if found[: len(cells)] == list(cells)]
    return found[len(cells) :]


def test_ce_nats_passes_all_musts() -> None:
    """Without --exec, ce_nats is tested with all suites."""
    status, output = run("--failures")
    assert status == 0, output
    musts = sum(case.level == "MUST" for case in load_cases())
    assert row(output, "all", "MUST") == [str(musts), "-", "-"]


@pytest.mark.slow
def test_failed_must_is_status_1(peer: str) -> None:
    """Failures are listed by suite, requirement and case."""
    status, output = run("--suite", "percent-encoding", "--exec", peer, "--failures")
    assert status == 1
    passed, failed, skipped = row(output, "percent-encoding", "MUST")
    assert (int(passed) > 0, int(failed) > 0, skipped) == (True, True, "-")
    assert row(output, "NB-3.1.3.2-23", "MUST")[:3] == ["-", "1", "-"]
    assert re.search(r"percent-encoding/overlong-space +MUST +NB-3\.1\.3\.2-23", output)
    assert '{"error": "invalid-utf8"}' in output


@pytest.mark.slow
def test_failures_are_only_counted_without_the_option(peer: str) -> None:
    """The list of failures is only printed with --failures."""
    _, output = run("--suite", "percent-encoding", "--exec", peer)
    assert "percent-encoding/overlong-space" not in output
    assert "failed; use --failures to list them" in output


@pytest.mark.slow
def test_verdicts_as_json(peer: str) -> None:
    """--json prints each case with its verdict, and failures with expected and actual results."""
    status, output = run("--suite", "percent-encoding", "--exec", peer, "--json")
    found = json.loads(output)
    by_id = {case["id"]: case for case in found["cases"]}
    assert status == 1
    assert found["implementation"] == peer
    assert by_id.keys() == {case.id for case in load_cases(["percent-encoding"])}
    assert sum(found["totals"]["MUST"].values()) == sum(case["level"] == "MUST" for case in found["cases"])
    assert by_id["overlong-space"]["result"] == "failed"
    assert by_id["overlong-space"]["wanted"] == [{"error": "invalid-utf8"}]
    assert by_id["overlong-space"]["got"]["result"] == {"text": "\ufffd\ufffd"}
    assert "wanted" not in by_id["decode-euro-example"]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--exec", "/no/such/program"], id="no-program"),
        pytest.param(["--exec", f"{quote(sys.executable)} -c ''"], id="no-answer"),
        pytest.param(["--exec", ""], id="no-words"),
        pytest.param(["--suite", "no-such-suite"], id="no-suite"),
        pytest.param(["--timeout", "0"], id="no-time"),
        pytest.param(["--no-such-option"], id="no-option"),
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str]) -> None:
    """Wrong usage, and programs that cannot be run, print nothing on standard output."""
    status, output = run(*arguments)
    assert (status, output) == (2, "")


@pytest.mark.slow
def test_ce_nats_passes_as_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ce-nats answer`` passes up to 20 cases of each operation like other programs, with lines of JSON."""
    monkeypatch.chdir(ROOT)
    known = load_cases()
    some = [case for op in {case.op for case in known} for case in [case for case in known if case.op == op][:20]]
    with Command(f"{quote(sys.executable)} -m ce_nats answer", timeout=60) as program:
        assert [verdict for verdict in map(program.run, some) if verdict.result is not Result.PASSED] == []


@each("missing", ["typer", "rich"])
def test_missing_extra_is_an_error_of_one_line(missing: str) -> None:
    """Without its libraries, the command line prints in one line how to install them."""
    code = f"import sys; sys.modules[{missing!r}] = None; from ce_nats.__main__ import main; main()"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "pip install 'ce-nats[cli]'" in result.stderr
