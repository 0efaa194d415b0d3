"""What is made of strings is made once, and little is kept."""

from ce_nats.codec.memory import MAX_LENGTH, MAX_STRINGS, Memory


def test_a_memory_is_bounded() -> None:
    calls: list[str] = []

    def make(text: str) -> int:
        calls.append(text)
        return len(text)

    known = Memory(make)
    assert [known["a"], known["a"], known["bb"]] == [1, 1, 2]
    assert calls == ["a", "bb"]
    assert [known["x" * (MAX_LENGTH + 1)] for _ in range(2)] == [MAX_LENGTH + 1] * 2
    assert len(calls) == 4
    for number in range(5000):
        known[str(number)]
        assert len(known) <= MAX_STRINGS
