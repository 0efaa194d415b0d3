import os
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext

import pytest

from ce_nats import ErrorCode, to_nats_message
from ce_nats.aio import Received
from ce_nats.cli import _demonstration as demonstration
from ce_nats.cli._demonstration import Findings, Sample, columns_of, counts, differences, outcome_of, samples
from ce_nats.message import StoredMessage

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COLUMNS = ("ce_type", "ce_id", "ce_subject", "ce_extensions")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The result of the demonstration, which runs once for all tests, and the directory of its temporary files."""
    scratch = tmp_path_factory.mktemp("scratch")
    # Not as errors, because some libraries catch every error of an optional import.
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONWARNINGS": "default", "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "ce_nats", "demo"]
    result = subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=900, cwd=scratch, env=environment, check=False
    )
    return result, scratch


def test_all_steps_agree(run):
    result, _ = run
    assert "all steps agree: sent = received = captured = decoded by Spark" in result.stdout, result.stderr
    assert result.returncode == 0


def test_each_step_has_the_counts_of_the_sent_messages(run):
    table = {}
    for line in run[0].stdout.splitlines():
        name, *numbers = line.split() or [""]
        if len(numbers) == 4 and all(map(str.isdigit, numbers)):
            table[name] = [int(number) for number in numbers]
    expected = Counter(sample.outcome for sample in samples())
    assert table.pop("all") == [len(samples())] * 4
    assert table == {outcome: [count] * 4 for outcome, count in expected.items()}


def test_one_message_is_shown_before_and_after(run):
    assert "Z%C3%BCrich%20%E2%86%92" in run[0].stdout
    assert 'Zürich → 東京 😀 "100 %"' in run[0].stdout


def test_no_warnings_and_at_most_100_columns(run):
    result, _ = run
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_no_file_remains(run):
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
def findings(sent):
    """The findings of a run without differences."""
    found = Findings(captured=len(sent))
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


def test_every_sample_has_its_outcome(sent):
    for sample in sent:
        assert outcome_of(stored(1, sample)) == sample.outcome
    outcomes = {sample.outcome for sample in sent}
    assert {"binary", "structured"} < outcomes
    assert outcomes - {"binary", "structured"} <= set(ErrorCode)
    assert len(outcomes) > 10


def test_a_correct_run_has_no_differences(sent, findings):
    assert differences(sent, findings) == []
    assert {sum(counter.values()) for counter in counts(sent, findings).values()} == {len(sent)}


def test_a_lost_message_is_a_difference(sent, findings):
    findings.received.pop()
    (difference,) = differences(sent, findings)
    assert difference.startswith("received and sent differ")


def test_an_additional_row_is_a_difference(sent, findings):
    findings.rows[0] = findings.rows[1]
    (difference,) = differences(sent, findings)
    assert difference.startswith("Spark and sent differ")


def test_a_short_capture_is_a_difference(sent, findings):
    findings.captured -= 1
    assert len(differences(sent, findings)) == 1


def test_another_error_code_is_a_difference(sent, findings):
    row = next(row for row in findings.rows.values() if row["ce_error"] == "invalid-utf8")
    row["ce_error"] = "invalid-json"
    assert len(differences(sent, findings)) == 1


@pytest.mark.parametrize("column", ["ce_id", "ce_subject", "ce_time", "ce_extensions", "ce_data"])
def test_another_value_is_a_difference(sent, findings, column):
    row = next(row for row in findings.rows.values() if row.get(column))
    row[column] = None
    (difference,) = differences(sent, findings)
    assert column in difference


def test_a_difference_is_status_1(monkeypatch, capsys):
    """All steps run except Spark, which is replaced with a step that loses a row."""

    def lose_a_row(spark, path, findings):
        for sequence, message in list(findings.stored.items())[1:]:
            row = {"sequence": sequence, "ce_mode": None, "ce_error": outcome_of(message)}
            findings.rows[sequence] = {**dict.fromkeys(COLUMNS), **row, **columns_of(message)}

    monkeypatch.setattr(demonstration, "quiet_spark", lambda directory: nullcontext())
    monkeypatch.setattr(demonstration, "explode", lose_a_row)
    assert demonstration.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "NOT ALL STEPS AGREE"


def test_samples_have_all_kinds_of_values(sent):
    """Every column has a value in some sample, and there are extensions of each type."""
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
