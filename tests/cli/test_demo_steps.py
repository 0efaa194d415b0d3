import os
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext

import pytest

from ce_nats import ErrorCode, to_nats_message
from ce_nats.aio import Received
from ce_nats.cli import _demo_steps
from ce_nats.cli._demo_samples import Sample, samples
from ce_nats.cli._demo_steps import Results, columns_of, counts, differences, outcome_of
from ce_nats.message import StoredMessage

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COLUMNS = ("ce_type", "ce_id", "ce_subject", "ce_extensions")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run the demonstration once for all tests; return its result, and the directory of its temporary files."""
    scratch = tmp_path_factory.mktemp("scratch")
    # Not "error", because some libraries catch all errors of an optional import.
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONWARNINGS": "default", "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "ce_nats", "demo"]
    result = subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=900, cwd=scratch, env=environment, check=False
    )
    return result, scratch


@pytest.mark.long
def test_all_steps_agree(run):
    result, _ = run
    assert "all steps agree: sent = received = captured = decoded by Spark" in result.stdout, result.stderr
    assert result.returncode == 0


@pytest.mark.long
def test_each_step_has_the_counts_of_the_sent_messages(run):
    table = {}
    for line in run[0].stdout.splitlines():
        name, *numbers = line.split() or [""]
        if len(numbers) == 4 and all(map(str.isdigit, numbers)):
            table[name] = [int(number) for number in numbers]
    expected = Counter(sample.outcome for sample in samples())
    assert table.pop("all") == [len(samples())] * 4
    assert table == {outcome: [count] * 4 for outcome, count in expected.items()}


@pytest.mark.long
def test_message_is_shown_encoded_and_decoded(run):
    assert "Z%C3%BCrich%20%E2%86%92" in run[0].stdout
    assert 'Zürich → 東京 😀 "100 %"' in run[0].stdout


@pytest.mark.long
def test_output_has_no_warnings_and_at_most_100_columns(run):
    result, _ = run
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


@pytest.mark.long
def test_temporary_files_are_deleted(run):
    _, scratch = run
    assert list(scratch.iterdir()) == []


# --- Differences are found (without Spark) ----------------------------------------------------------------------------


def stored(sequence: int, sample: Sample) -> StoredMessage:
    if sample.event is None:
        headers, data = list((sample.headers or {}).items()), sample.payload
    else:
        message = to_nats_message(sample.event, mode=sample.outcome)
        headers, data = message.headers.items(), message.data
    return StoredMessage(sample.subject, "", headers, data, "DEMO", sequence, None)


@pytest.fixture
def sent():
    return samples()


@pytest.fixture
def results(sent):
    """Return the results of a run without differences."""
    found = Results(captured=len(sent))
    for sequence, sample in enumerate(sent, 1):
        message = found.stored[sequence] = stored(sequence, sample)
        found.received.append(Received(message, None))
        found.rows[sequence] = {
            "sequence": sequence,
            "ce_mode": None,
            "ce_error": sample.outcome,
            **columns_of(message),
        }
    return found


def test_samples_have_their_expected_outcomes(sent):
    for sample in sent:
        assert outcome_of(stored(1, sample)) == sample.outcome
    outcomes = {sample.outcome for sample in sent}
    assert {"binary", "structured"} < outcomes
    assert outcomes - {"binary", "structured"} <= set(ErrorCode)
    assert len(outcomes) > 10


def test_correct_run_has_no_differences(sent, results):
    assert differences(sent, results) == []
    assert {sum(counter.values()) for counter in counts(sent, results).values()} == {len(sent)}


def test_lost_message_is_a_difference(sent, results):
    results.received.pop()
    (difference,) = differences(sent, results)
    assert difference.startswith("received and sent messages differ")


def test_additional_row_is_a_difference(sent, results):
    results.rows[0] = results.rows[1]
    (difference,) = differences(sent, results)
    assert difference.startswith("Spark and sent messages differ")


def test_incomplete_capture_is_a_difference(sent, results):
    results.captured -= 1
    assert len(differences(sent, results)) == 1


def test_different_error_code_is_a_difference(sent, results):
    row = next(row for row in results.rows.values() if row["ce_error"] == "invalid-utf8")
    row["ce_error"] = "invalid-json"
    assert len(differences(sent, results)) == 1


@pytest.mark.parametrize("column", ["ce_id", "ce_subject", "ce_time", "ce_extensions", "ce_data"])
def test_different_value_is_a_difference(sent, results, column):
    row = next(row for row in results.rows.values() if row.get(column))
    row[column] = None
    (difference,) = differences(sent, results)
    assert column in difference


def test_difference_is_status_1(monkeypatch, capsys):
    """All steps run except Spark, which is replaced by a step that loses a row."""

    def lose_a_row(spark, path, results):
        for sequence, message in list(results.stored.items())[1:]:
            row = {"sequence": sequence, "ce_mode": None, "ce_error": outcome_of(message)}
            results.rows[sequence] = {**dict.fromkeys(COLUMNS), **row, **columns_of(message)}

    monkeypatch.setattr(_demo_steps, "quiet_spark", lambda directory: nullcontext())
    monkeypatch.setattr(_demo_steps, "explode", lose_a_row)
    assert _demo_steps.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "NOT ALL STEPS AGREE"


def test_samples_have_all_kinds_of_values(sent):
    """Each column has a value in some sample, and extensions have all types."""
    columns = [columns_of(stored(1, sample)) for sample in sent]
    assert all(any(row.get(name) for row in columns) for name in max(columns, key=len))
    extensions = {name: text for row in columns for name, text in row.get("ce_extensions", {}).items()}
    assert extensions == {
        "alarm": "true",
        "level": "-42",
        "unit": "°C",
        "raw": "AAH/",
        "calibrated": "2026-01-01T12:30:00Z",
        "traceid": "",
    }
