"""Patterns of stream names. No server is needed."""

import time

import pytest

from ce_nats.spark.connector._pattern import StreamPattern
from tests.support.tables import each


@each(
    ("text", "expected"),
    [
        ("ORDERS", ["ORDERS"]),
        ("ORDERS_.*", ["ORDERS_EU", "ORDERS_US"]),
        ("ORDERS|STOCK", ["ORDERS", "STOCK"]),
        ("(?i)orders_eu", ["ORDERS_EU"]),
        ("(?m)^ORDERS$", ["ORDERS"]),
        (r"\QORDERS\E", ["ORDERS"]),
        ("über.*", ["überfällig"]),
        (".*", ["ORDERS", "ORDERS_EU", "ORDERS_US", "STOCK", "überfällig"]),
        ("ORDERS*", ["ORDERS"]),
        ("ORDER", []),
    ],
)
def test_the_whole_name_has_to_match(text: str, expected: list[str]) -> None:
    pattern = StreamPattern(text)
    pattern.check()
    assert pattern.matching(["ORDERS", "ORDERS_EU", "ORDERS_US", "STOCK", "überfällig"]) == expected
    assert pattern.matching([]) == []


@each(
    ("text", "reason"),
    [
        ("*", "no argument for repetition operator"),
        ("[", "missing ]"),
        ("a)|(b", "unexpected )"),
        ("\\", "trailing"),
        (r"\QORDERS", "missing )"),
        ("(?=a)", "invalid perl operator"),
        (r"(a)\1", "invalid escape sequence"),
        ("a{100000}", "invalid repetition size"),
        ("(" * 5_000, "missing )"),
        ("x" * 300_000 + "(", "missing )"),
    ],
)
def test_invalid_patterns(text: str, reason: str) -> None:
    with pytest.raises(
        ValueError, match="streamPattern must be a regular expression in the syntax of RE2, got "
    ) as caught:
        StreamPattern(text).check()
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 500


def test_matching_takes_linear_time() -> None:
    """Python's ``re`` would need more than 2**200 steps."""
    started = time.process_time()
    pattern = StreamPattern("(a|a|aa)+b")
    pattern.check()
    assert pattern.matching(["a" * 255] * 1_000) == []
    assert time.process_time() - started < 5
