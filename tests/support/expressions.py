"""Random expressions of CESQL, and events for them."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st

from ce_nats.cesql._syntax import quoted

ATTRIBUTES = ("id", "source", "type", "subject", "tier", "hops", "urgent", "missing")
# Characters of strings: those with a meaning in patterns or literals, and others.
ASCII = "ab%_.1 "
ALL = "aB%_.'\"\\\u00e9\U0001f600\u00df\n "
_TEXTS = ("", "gold", "true", "FALSE", "7", "-3", "+1", "007", "2147483648", "/eu/x", "0")
_INTEGERS = (0, 1, 2, -1, 7, 2147483647, -2147483648)
_COMPARISONS = ("=", "!=", "<>", "<", "<=", ">", ">=")
_OPERATORS = (*_COMPARISONS, "=", "+", "-", "*", "/", "%", "AND", "OR", "XOR", "AND", "OR")
_CALLS = (
    *(("LENGTH", 1), ("CONCAT", 0), ("CONCAT", 3), ("CONCAT_WS", 3), ("LOWER", 1), ("UPPER", 1), ("TRIM", 1)),
    *(("LEFT", 2), ("RIGHT", 2), ("SUBSTRING", 2), ("SUBSTRING", 3), ("ABS", 1), ("INT", 1), ("BOOL", 1)),
    *(("STRING", 1), ("IS_INT", 1), ("NOPE", 1)),
)


def random_string(random: Random, characters: str = ALL) -> str:
    if random.random() < 0.5:
        return random.choice(_TEXTS)
    return "".join(random.choice(characters) for _ in range(random.randint(0, 6)))


def _literal(random: Random, characters: str) -> str:
    try:
        return quoted(random_string(random, characters))
    except ValueError:  # no literal has this value
        return "''"


def _leaf(random: Random, characters: str) -> str:
    kind = random.randint(0, 6)
    if kind < 3:
        return random.choice(ATTRIBUTES)
    if kind == 3:
        return f"EXISTS {random.choice(ATTRIBUTES)}"
    if kind == 4:
        return _literal(random, characters)
    if kind == 5:
        return str(random.choice(_INTEGERS) if random.random() < 0.5 else random.randint(-20, 20))
    return random.choice(("TRUE", "false"))


def random_text(random: Random, characters: str = ALL, depth: int = 3) -> str:
    """Return an expression with at most a number of levels."""

    def inner() -> str:
        return random_text(random, characters, depth - 1)

    kind = random.randint(0, 7) if depth else 7
    if kind < 2:
        return f"{inner()} {random.choice(_OPERATORS)} {inner()}"
    if kind == 2:
        return f"({inner()} {random.choice(_OPERATORS)} {inner()})"
    if kind == 3:
        operand = random.choice(("tier", "subject", _literal(random, characters), inner()))
        return f"{operand} {random.choice(('', 'NOT '))}LIKE {_literal(random, characters)}"
    if kind == 4:
        several = ", ".join(inner() for _ in range(random.randint(1, 3)))
        return f"{inner()} {random.choice(('', 'NOT '))}IN ({several})"
    if kind == 5:
        return f"{random.choice(('NOT', '-'))} {inner()}"
    if kind == 6:
        name, count = random.choice(_CALLS)
        arguments = [inner() for _ in range(count)]
        if count and random.random() < 0.5:
            arguments[0] = random.choice(("tier", "subject"))
            arguments[1:] = [str(random.randint(-7, 7)) for _ in arguments[1:]]
        return f"{name}({', '.join(arguments)})"
    return _leaf(random, characters)


def random_event(random: Random, characters: str = ALL) -> dict[str, Any]:
    """Return the attributes of a valid event."""
    legal = characters.replace("\n", "")
    event = {
        "specversion": "1.0",
        "id": random.choice(("1", "e-7")),
        "source": random.choice(("/eu/x", "/us")),
        "type": "t",
    }
    optional = {
        "subject": random_string(random, legal) or "s",
        "tier": random_string(random, legal),
        "hops": random.choice(_INTEGERS),
        "urgent": random.random() < 0.5,
    }
    return event | {name: value for name, value in optional.items() if random.random() < 0.7}


# Their choices are those of hypothesis, so that a failing example is made smaller.
_RANDOMS = st.randoms(use_true_random=False)
STRINGS = _RANDOMS.map(random_string)
TEXTS = _RANDOMS.map(random_text)
EVENTS = _RANDOMS.map(random_event)
