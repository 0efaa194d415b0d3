"""Caches of a function's results are bounded."""

from ce_nats.codec._bounded_cache import MAX_STRING_LENGTH, MAX_STRINGS, BoundedCache


def test_results_are_cached_up_to_a_limit() -> None:
    calls: list[str] = []

    def make(text: str) -> int:
        calls.append(text)
        return len(text)

    cache = BoundedCache(make)
    assert [cache["a"], cache["a"], cache["bb"]] == [1, 1, 2]
    assert calls == ["a", "bb"]
    assert [cache["x" * (MAX_STRING_LENGTH + 1)] for _ in range(2)] == [MAX_STRING_LENGTH + 1] * 2
    assert len(calls) == 4
    for number in range(5000):
        cache[str(number)]
        assert len(cache) <= MAX_STRINGS
