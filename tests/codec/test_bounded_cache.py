"""Caches of a function's results are bounded."""

from ce_nats.codec._bounded_cache import (
    MAX_NAMES,
    MAX_NAMES_LENGTH,
    MAX_STRING_LENGTH,
    MAX_STRINGS,
    MAX_TUPLES,
    BoundedCache,
    BoundedNamesCache,
    is_cacheable,
)


def test_results_are_cached_up_to_a_limit() -> None:
    calls: list[str] = []

    def make(text: str) -> int:
        calls.append(text)
        return len(text)

    cache = BoundedCache(make)
    assert [cache["a"], cache["a"], cache["bb"]] == [1, 1, 2]
    assert calls == ["a", "bb"]
    for length, count in ((MAX_STRING_LENGTH, 1), (MAX_STRING_LENGTH + 1, 2)):
        calls.clear()
        assert [cache["x" * length], cache["x" * length]] == [length] * 2
        assert len(calls) == count
    for number in range(5000):
        cache[str(number)]
        assert len(cache) <= MAX_STRINGS


def test_results_of_names_are_cached_up_to_a_limit() -> None:
    calls: list[tuple[str, ...]] = []

    def make(names: tuple[str, ...]) -> int:
        calls.append(names)
        return len(names)

    cache = BoundedNamesCache(make)
    fits = ("x" * (MAX_NAMES_LENGTH - MAX_NAMES + 1), *["y"] * (MAX_NAMES - 1))
    too_many, too_long = ("y",) * (MAX_NAMES + 1), ("x" * (MAX_NAMES_LENGTH + 1),)
    for names, count in (((), 1), (fits, 1), (too_many, 2), (too_long, 2)):
        calls.clear()
        assert [cache[names], cache[names]] == [len(names)] * 2
        assert len(calls) == count
    for number in range(2 * MAX_TUPLES):
        cache[str(number),]
        assert len(cache) <= MAX_TUPLES
    assert len(cache) > 1


def test_only_names_of_class_str_are_cacheable() -> None:
    class Name(str):
        """A subclass of str."""

    assert is_cacheable(("a", "b"))
    assert not is_cacheable(("a", Name("b")))
