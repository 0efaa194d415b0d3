"""Some inputs of every target with a fixed seed, and faults that a run must find."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ce_nats import DecodeError, NatsMessage, from_nats_message
from ce_nats.arrow import _decode
from ce_nats.codec import _fast_path
from ce_nats.conformance import load_cases
from ce_nats.conformance._cases import octets
from tests.proof import record
from tests.proof.fuzz import __main__ as command
from tests.proof.fuzz import engine, formats, java, limits
from tests.proof.fuzz.inputs import inputs_of
from tests.proof.fuzz.mutate import MAX_SIZE
from tests.proof.fuzz.target import Check, Target, decoder, one_by_one
from tests.proof.fuzz.targets import TARGETS
from tests.support.strategies import binary_message

JAVA = [pytest.mark.spark, pytest.mark.long]  # starting Java takes many seconds on a busy machine
INPUTS = {"parquet": 40, "schema": 100, "arrow": 250}


@pytest.mark.parametrize("name", [pytest.param(name, marks=JAVA if name == "java" else []) for name in TARGETS])
def test_promises_hold(name: str) -> None:
    target = TARGETS[name]  # several batches, of which every other has changed inputs
    run = engine.Run(dataclasses.replace(target, batch=min(target.batch, 125)), seed=1, inputs=INPUTS.get(name, 500))
    run.turn(float("inf"))
    assert run.result.findings == []
    assert run.result.inputs == INPUTS.get(name, 500)
    assert run.result.outcomes > 1


def test_cases_are_seeds_in_every_spelling() -> None:
    cases = [case.input["block"] for case in load_cases() if case.op == "wire.nats.decode_header_block"]
    short = [data for case in cases if len(data := octets(case)) <= MAX_SIZE]
    assert inputs_of("block", "wire.nats.decode_header_block") == short
    assert {"text", "base64", "repeat"} <= {name for case in cases for name in case}


# --- Planted faults -------------------------------------------------------------------------------------------------


def fails_for_a_byte(data: bytes) -> int:
    if b"\x07" in data:
        raise KeyError("planted")
    return len(data) // 4


def fails_after_another(inputs: list[bytes]) -> list[int]:
    """Fail if two inputs are run together, as a cache does that is not reset."""
    if {b"one", b"two"} <= {*inputs}:
        raise AssertionError("planted")
    return [1 for _ in inputs]


class LongError(DecodeError):
    def __str__(self) -> str:
        return "x" * 3_000


def planted(check: Check = one_by_one(fails_for_a_byte), *seeds: bytes, name: str = "planted") -> Target:  # noqa: B008
    return Target(name, "", check, lambda: seeds or [b"abc", b"abd"], batch=50)


def run_of(target: Target, inputs: int, seed: int = 1) -> engine.Result:
    run = engine.Run(target, seed, inputs=inputs)
    run.turn(float("inf"))
    return run.result


def test_fault_is_found() -> None:
    result = run_of(planted(), 100_000)
    assert len(result.findings) == engine.MAX_FINDINGS
    assert result.inputs < 100_000
    assert all(b"\x07" in data for finding in result.findings for data in finding.inputs)
    assert result.findings[0].error.startswith("KeyError: 'planted' (fails_for_a_byte, line ")


def test_inputs_that_fail_only_together_are_found_alone() -> None:
    seeds = [b"%d" % number for number in range(20)]
    result = run_of(planted(fails_after_another, b"one", *seeds, b"two"), 50)
    assert [finding.inputs for finding in result.findings] == [[b"one", b"two"]]


def burn(seconds: float) -> bool:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return True


@pytest.mark.parametrize("batch", [[b"a", b"slow", b"b"], [b"slow"]])
def test_slow_input_is_found(batch: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIMIT", 0.01)
    (finding,) = engine.findings_in(planted(one_by_one(lambda data: data == b"slow" and burn(0.02))), batch)
    assert finding.inputs == [b"slow"]
    assert finding.error.startswith("too slow: 4 bytes took 0.0")


def test_input_that_is_slow_only_once_is_not_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call may load modules; a few inputs that take long together are not slow; neither is a busy machine."""
    monkeypatch.setattr(limits, "LIMIT", 0.03)
    seconds = iter([0.05])
    assert engine.findings_in(planted(one_by_one(lambda _: burn(next(seconds, 0)))), [b"a"]) == []
    assert engine.findings_in(planted(one_by_one(lambda _: burn(0.006))), [b"%d" % number for number in range(8)]) == []
    assert engine.findings_in(planted(one_by_one(lambda _: time.sleep(0.04))), [b"a"]) == []


def test_input_without_end_is_interrupted_and_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_END", 0.05)

    def hang(data: bytes) -> None:
        while data == b"hang":
            with contextlib.suppress(Exception):
                burn(1)

    (finding,) = engine.findings_in(planted(one_by_one(hang)), [b"a", b"hang"])
    assert finding.inputs == [b"hang"]
    assert finding.error.startswith("RunsWithoutEnd: ")


def test_pieces_are_repeated_in_some_inputs() -> None:
    """Code of more than linear time takes long for them."""
    inputs: list[bytes] = []
    run_of(planted(one_by_one(lambda data: inputs.append(data)), b"ab;cd;ef"), 1_000)  # type: ignore[func-returns-value]
    long = [data for data in inputs if len(data) > MAX_SIZE]
    assert 4 <= len(long) <= 10
    for data in long:
        assert abs(len(data) - planted().long) < 100
        assert any(data[50:1_000] == (data[50 : 50 + size] * 950)[:950] for size in range(1, 9))


@pytest.mark.parametrize("error", [ValueError("a"), LongError("invalid-json", "x"), RecursionError()])
def test_undocumented_errors_are_findings(error: Exception) -> None:
    def fail(_: bytes) -> None:
        raise error

    assert run_of(planted(decoder(fail)), 1).findings


def test_documented_errors_are_outcomes() -> None:
    def fail(_: bytes) -> None:
        raise DecodeError("invalid-json", "wrong")

    result = run_of(planted(decoder(fail)), 100)
    assert (result.findings, result.outcomes) == ([], 1)


def test_inputs_depend_on_the_seed_only() -> None:
    def seen(seed: int, turn: float) -> list[bytes]:
        inputs: list[bytes] = []
        run = engine.Run(planted(one_by_one(lambda data: inputs.append(data) or len(data) % 7)), seed, inputs=500)  # type: ignore[func-returns-value]
        while not run.is_done:
            run.turn(turn)
        return inputs

    assert seen(1, 0) == seen(1, float("inf")) != seen(2, 0)


def spoiled(function: Any, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function that changes the results that are not None."""

    def changed(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return result if result is None else change(result)

    return changed


OTHER_EVENT = from_nats_message(binary_message())


@pytest.mark.parametrize(
    ("name", "module", "function", "change"),
    [
        ("fast-decode", _fast_path, "decode", lambda _: OTHER_EVENT),
        ("fast-blocks", _fast_path, "block_decoder", lambda decode: lambda *_: OTHER_EVENT),
        ("fast-encode", _fast_path, "encode_headers", lambda pairs: pairs[:-1]),
        ("fast-encode", _fast_path, "encode_event", lambda payload: payload + b" "),
        (
            "round-trip",
            formats,
            "to_nats_message",
            lambda message: NatsMessage(message.subject, b"{}", message.headers),
        ),
        ("round-trip", formats, "to_nats_message", lambda message: NatsMessage(message.subject, b"{", message.headers)),
        ("arrow", _decode, "_is_json", lambda is_json: not is_json),
        ("arrow", _decode, "_common_times", lambda times: pa.nulls(len(times), times.type)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_difference_is_found(
    name: str, module: Any, function: str, change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, function, spoiled(getattr(module, function), change))
    run = engine.Run(dataclasses.replace(TARGETS[name], batch=40), seed=1, inputs=8_000)
    while not run.result.findings:
        assert not run.is_done
        run.turn(0)
    assert run.result.findings[0].error.startswith("AssertionError")


@pytest.mark.spark
@pytest.mark.long
def test_difference_of_java_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "expected", spoiled(java.expected, lambda columns: {**columns, "time": None}))
    assert run_of(dataclasses.replace(TARGETS["java"], batch=20), 400).findings


# --- Command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> dict[str, Target]:
    known = {"planted": planted(), "sound": planted(one_by_one(len), name="sound")}
    monkeypatch.setattr(command, "TARGETS", known)
    return known


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    written: list[tuple[object, ...]] = []
    monkeypatch.setattr(record, "write", lambda *args: written.append(args))
    return written


@pytest.mark.usefixtures("targets")
def test_findings_are_written_with_a_command_that_replays_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--inputs", "10000", "--findings", str(tmp_path)]
    assert command.main(arguments) == 1
    replay = next(line for line in capsys.readouterr().out.splitlines() if "--replay" in line)
    assert command.main(shlex.split(replay)[3:]) == 1
    assert "KeyError: 'planted'" in capsys.readouterr().out
    assert len([*tmp_path.iterdir()]) == engine.MAX_FINDINGS

    sound = tmp_path / "sound"
    sound.write_bytes(b"abc")
    assert command.main(["--target", "planted", "--replay", str(sound)]) == 0


@pytest.mark.usefixtures("targets")
def test_run_without_findings_is_recorded(records: list[tuple[object, ...]]) -> None:
    assert command.main(["--target", "sound", "--inputs", "100", "--record"]) == 0
    ((section, made_by, lines),) = records
    assert (section, made_by) == ("fuzz", "python -m tests.proof.fuzz --target sound --inputs 100 --record")
    assert isinstance(lines, list)
    assert lines[0].startswith("100 inputs in ")
    assert lines[-1].startswith("| sound | 100 | ")


@pytest.mark.usefixtures("targets")
def test_interrupted_run_prints_what_was_run(
    records: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turn = engine.Run.turn

    def interrupted(run: engine.Run, _: float) -> None:
        if run.result.inputs:
            raise KeyboardInterrupt
        turn(run, 0)

    monkeypatch.setattr(engine.Run, "turn", interrupted)
    assert command.main(["--target", "sound", "--record"]) == 1
    assert "| sound | 2 | " in capsys.readouterr().out
    assert records == []
