"""
The judge: what counts as equal, how a program that answers is treated, and what the command line says of it.
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

from ce_nats import __version__
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

ROOT = Path(__file__).parents[1]

# A program for --exec. It decodes percent-escapes with its language's own function, which is right for some cases and
# wrong for others, and it misbehaves when a value asks for it.
PEER = """
import json, sys, time
from urllib.parse import unquote

print("ready", file=sys.stderr)
for line in sys.stdin:
    case = json.loads(line)
    value = case["input"].get("value")
    answer = {"id": case["id"]}
    if value == "crash":
        print("cannot go on", file=sys.stderr)
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
    elif value == "refuse" or case["op"] != "percent.decode":
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
    """Command line of the program above."""
    script = tmp_path / "peer.py"
    script.write_text(PEER, encoding="utf-8")
    return f"{quote(sys.executable)} {quote(str(script))}"


@pytest.fixture
def program(peer: str) -> Iterator[Command]:
    """The program above, started when it is first asked."""
    with Command(peer, timeout=60) as command:
        yield command


def decode_case(value: str, *outcomes: dict[str, Any]) -> Case:
    """A case of ``percent.decode``; it wants the value itself unless told otherwise."""
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
def test_equal(op: str, one: Any, other: Any) -> None:
    """Two spellings of one result match, in either role."""
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
def test_different(op: str, one: Any, other: Any) -> None:
    """Two results that differ do not match, in either role."""
    assert not matches(op, one, other)
    assert not matches(op, other, one)
    assert matches(op, one, one)


def test_expand() -> None:
    """Repeats are written out wherever they are, but for data that happens to look like one."""
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


def test_codes_count_in_process_only() -> None:
    """ce_nats has to give the very code; another implementation has to refuse."""
    case = decode_case("%", {"error": "invalid-percent-escape"})
    other = {"error": "invalid-utf8"}
    assert judge(case, other, codes_count=True).result is Result.FAILED
    assert judge(case, other, codes_count=False).result is Result.PASSED
    assert judge(case, answer(case.op, case.input), codes_count=True).result is Result.PASSED


def test_each_accepted_outcome_passes() -> None:
    """Where the texts leave it open, each outcome that is listed passes, and no other."""
    case = decode_case("a", {"expected": {"text": "a"}}, {"expected": {"text": "b"}}, {"error": "invalid-utf8"})
    answers: list[Any] = [{"result": {"text": "a"}}, {"result": {"text": "b"}}, {"error": "invalid-utf8"}]
    assert [judge(case, one, codes_count=True).result for one in answers] == [Result.PASSED] * 3
    assert judge(case, {"result": {"text": "c"}}, codes_count=True).result is Result.FAILED


@pytest.mark.parametrize(
    ("header", "passes"),
    [
        (["Content-Type", "application/cloudevents+json"], True),
        (["content-type", "Application/CloudEvents+JSON; charset=UTF-8"], True),
        (["Content-Type", "application/json"], False),
        (["Content-Types", "application/cloudevents+json"], False),
    ],
)
def test_content_type_of_others_is_compared_by_its_meaning(header: list[str], passes: bool) -> None:
    """In structured mode, but for ce_nats itself and in the case that is about its spelling."""
    cases = {case.id: case for case in load_cases(["structured-mode"])}
    event, own = cases["write-json-event"], cases["write-json-one-header"]
    assert "A-34" in own.requirements
    expected = {case.id: case.outcomes[0]["expected"] for case in (event, own)}
    got = {case.id: {"result": {**expected[case.id], "headers": [header]}} for case in (event, own)}
    is_ours = header == expected[event.id]["headers"][0]
    results = [
        judge(event, got[event.id], codes_count=False).result,
        judge(event, got[event.id], codes_count=True).result,
        judge(own, got[own.id], codes_count=False).result,
    ]
    assert [result is Result.PASSED for result in results] == [passes, is_ours, is_ours]


@pytest.mark.parametrize(
    "got",
    [None, [], "a", {}, {"result": None}, {"result": {"text": 1}}, {"result": []}, {"results": {"text": "a"}}],
    ids=json.dumps,
)
def test_malformed_answers_fail(got: Any) -> None:
    """An answer of the wrong form fails and does no harm."""
    assert judge(decode_case("a"), got, codes_count=False).result is Result.FAILED


def test_a_crash_is_no_refusal() -> None:
    """When ce_nats crashes as a peer, a case that wants an error fails all the same."""
    line = json.dumps({"id": "x", "op": "percent.decode", "input": {}})
    (got,) = map(json.loads, answer_lines([line]))
    assert got == {"id": "x", "crashed": "KeyError: 'value'"}
    assert judge(decode_case("%", {"error": "invalid-percent-escape"}), got, codes_count=False).result is Result.FAILED


def test_an_unknown_operation_is_skipped() -> None:
    """ce_nats as a peer passes over an operation that it does not have."""
    (got,) = map(json.loads, answer_lines([json.dumps({"id": "x", "op": "percent.guess", "input": {}})]))
    assert "skipped" in got


# --- Programs -------------------------------------------------------------------------------------------------------


def test_right_and_wrong_answers(program: Command) -> None:
    """A result is compared, an error passes where an error is wanted, and a skip is neither."""
    assert program.run(decode_case("a%20b", {"expected": {"text": "a b"}})).result is Result.PASSED
    assert program.run(decode_case("anonymous")).result is Result.PASSED
    assert program.run(decode_case("refuse", {"error": "invalid-utf8"})).result is Result.PASSED
    assert program.run(decode_case("refuse")).result is Result.FAILED
    wrong = program.run(decode_case("%C0%A0", {"error": "invalid-utf8"}))
    assert (wrong.result, wrong.got["result"]) == (Result.FAILED, {"text": "\ufffd\ufffd"})
    skipped = program.run(decode_case("skip"))
    assert (skipped.result, skipped.problem) == (Result.SKIPPED, "not done yet")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param("crash", "it ended with status 3: ready cannot go on", id="crash"),
        pytest.param("cut", "it ended with status 0: ready", id="cut-off"),
        pytest.param("Hello!", "not a line of JSON: 'Hello!'", id="garbage"),
        pytest.param("NaN", "not a line of JSON: 'NaN'", id="nan"),
        pytest.param("", "not a line of JSON: ''", id="empty-line"),
        pytest.param("[1]", "not a JSON object: '[1]'", id="array"),
        pytest.param("late", "an answer to 'some-other-case'", id="other-case"),
        pytest.param("both", "the answer must be an object with one of result, error and skipped", id="both"),
        pytest.param("neither", "the answer must be an object with one of result, error and skipped", id="neither"),
    ],
)
def test_misbehaviour_costs_one_case(program: Command, value: str, problem: str) -> None:
    """What is no answer fails its case, and the next one is answered as if nothing had been."""
    assert program.run(decode_case("before")).result is Result.PASSED
    verdict = program.run(decode_case(value))
    assert (verdict.result, verdict.problem) == (Result.FAILED, problem)
    assert program.run(decode_case("after")).result is Result.PASSED


def test_a_hang_is_cut_short(peer: str) -> None:
    """A program that does not answer in time is ended, and started again."""
    with Command(peer, timeout=1) as program:
        verdict = program.run(decode_case("hang"))
        assert (verdict.result, verdict.problem) == (Result.FAILED, "no answer within 1 s")
        program._timeout = 60.0  # on a busy machine even the start takes its time
        began = monotonic()
        assert program.run(decode_case("after")).result is Result.PASSED
        assert monotonic() - began < 60


def test_a_program_that_does_not_read_is_cut_short() -> None:
    """A question larger than any pipe does not block the judge."""
    case = decode_case("a" * 4_000_000)
    with Command(f"{quote(sys.executable)} -c 'import time; time.sleep(600)'", timeout=1) as program:
        assert program.run(case).problem == "no answer within 1 s"


def test_large_questions_and_answers(program: Command) -> None:
    """A megabyte goes through in both directions."""
    assert program.run(decode_case("a" * 1_000_000)).result is Result.PASSED


def test_a_program_that_never_answers_is_no_implementation(peer: str) -> None:
    """Ten cases without one answer are a mistake in the command, not ten failures."""
    with Command(peer, timeout=60) as program:
        for _ in range(9):
            assert program.run(decode_case("crash")).result is Result.FAILED
        with pytest.raises(CommandError, match="status 3"):
            program.run(decode_case("crash"))


def test_a_program_that_stops_answering_is_given_up(peer: str) -> None:
    """After ten cases in a row without an answer the rest fails unasked."""
    with Command(peer, timeout=60) as program:
        assert program.run(decode_case("before")).result is Result.PASSED
        for _ in range(10):
            assert program.run(decode_case("crash")).result is Result.FAILED
        verdict = program.run(decode_case("after"))
        assert (verdict.result, verdict.problem) == (Result.FAILED, "not asked: no answer to 10 cases in a row")


@pytest.mark.parametrize("command", ["", "/no/such/program", "'unfinished"])
def test_a_command_that_cannot_be_run(command: str) -> None:
    """What is no command is an error of its own."""
    with pytest.raises(CommandError), Command(command) as program:
        program.run(decode_case("a"))


# --- The command line -----------------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    """Exit status and standard output of ``ce-nats``, wide enough for no table to be cut."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["conformance", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def row(table: str, *cells: str) -> list[str]:
    """The cells of the one row that begins with these."""
    rows = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in table.splitlines() if "│" in line]
    (found,) = [found for found in rows if found[: len(cells)] == list(cells)]
    return found[len(cells) :]


def test_ce_nats_passes_every_must() -> None:
    """Without --exec it is ce_nats that is judged, by all suites."""
    status, output = run("--failures")
    assert status == 0, output
    musts = sum(case.level == "MUST" for case in load_cases())
    assert row(output, "all", "MUST") == [str(musts), "-", "-"]


def test_a_failing_must_is_status_1(peer: str) -> None:
    """A program that breaks a MUST is told which, by suite, by requirement and by case."""
    status, output = run("--suite", "percent-encoding", "--exec", peer, "--failures")
    assert status == 1
    passed, failed, skipped = row(output, "percent-encoding", "MUST")
    assert (int(passed) > 0, int(failed) > 0, skipped) == (True, True, "-")
    assert row(output, "NB-3.1.3.2-23", "MUST")[:3] == ["-", "1", "-"]
    assert re.search(r"percent-encoding/overlong-space +MUST +NB-3\.1\.3\.2-23", output)
    assert '{"error": "invalid-utf8"}' in output


def test_failures_are_counted_without_the_option(peer: str) -> None:
    """The list of failures is long, so it is asked for."""
    _, output = run("--suite", "percent-encoding", "--exec", peer)
    assert "percent-encoding/overlong-space" not in output
    assert "failed; use --failures to list them" in output


def test_verdicts_as_json(peer: str) -> None:
    """--json has each case with its verdict, and of failures what was wanted and got."""
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
def test_what_cannot_be_asked_is_status_2(arguments: list[str]) -> None:
    """Wrong usage, and a program that cannot be run, print nothing that looks like a result."""
    status, output = run(*arguments)
    assert (status, output) == (2, "")


def test_ce_nats_judges_itself_as_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ce-nats answer`` passes as any other program would, through lines of JSON."""
    monkeypatch.chdir(ROOT)
    status, output = run("--exec", f"{quote(sys.executable)} -m ce_nats answer", "--json")
    failed = [case for case in json.loads(output)["cases"] if case["result"] != "passed"]
    assert (status, failed) == (0, [])


def test_version() -> None:
    """``python -m ce_nats --version`` names the version."""
    command = [sys.executable, "-m", "ce_nats", "--version"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == f"ce-nats {__version__}\n"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra(missing: str) -> None:
    """Without its libraries the command line says in one line how to get them."""
    code = f"import sys; sys.modules[{missing!r}] = None; from ce_nats.__main__ import main; main()"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "pip install 'ce-nats[cli]'" in result.stderr
