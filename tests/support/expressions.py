"""Random expressions of CESQL, and events for them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from ce_nats.cesql._syntax import quoted

ATTRIBUTES = ("id", "source", "type", "subject", "tier", "hops", "urgent", "missing")
_CHARACTERS = st.sampled_from("aAbB%_01-+'\"\\ é\U0001f600ß\n.*")
STRINGS = st.text(_CHARACTERS, max_size=6) | st.sampled_from(
    ("", "gold", "true", "FALSE", "7", "-3", "+1", "007", "2147483648", "/eu/x", "0")
)
_INTEGERS = st.sampled_from((0, 1, 2, -1, 7, 2147483647, -2147483648)) | st.integers(-20, 20)
_COMPARISONS = ("=", "!=", "<>", "<", "<=", ">", ">=")
_CALLS = (
    *(("LENGTH", 1), ("CONCAT", 0), ("CONCAT", 3), ("CONCAT_WS", 3), ("LOWER", 1), ("UPPER", 1), ("TRIM", 1)),
    *(("LEFT", 2), ("RIGHT", 2), ("SUBSTRING", 2), ("SUBSTRING", 3), ("ABS", 1), ("INT", 1), ("BOOL", 1)),
    *(("STRING", 1), ("IS_INT", 1), ("NOPE", 1)),
)


def _literal(value: str | int | bool) -> str:
    try:
        return quoted(value) if isinstance(value, str) else str(value).upper()
    except ValueError:  # no literal has this value
        return "''"


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(inner, min_size=1, max_size=3).map(", ".join)
    binary = st.sampled_from((*_COMPARISONS, "+", "-", "*", "/", "%", "AND", "OR", "XOR", "AND", "OR", "="))
    negation = st.sampled_from(("", "NOT "))
    calls = st.sampled_from(_CALLS).flatmap(
        lambda call: st.tuples(*[inner] * call[1]).map(lambda arguments: f"{call[0]}({', '.join(arguments)})")
    )
    return st.one_of(
        st.builds("{} {} {}".format, inner, binary, inner),
        st.builds("({} {} {})".format, inner, binary, inner),
        st.builds("{} {}LIKE {}".format, inner, negation, STRINGS.map(_literal)),
        st.builds("{} {}IN ({})".format, inner, negation, several),
        st.builds("NOT {}".format, inner),
        st.builds("- {}".format, inner),
        calls,
    )


TEXTS = st.recursive(
    st.one_of(
        st.sampled_from(ATTRIBUTES),
        st.sampled_from(ATTRIBUTES).map("EXISTS {}".format),
        STRINGS.map(_literal),
        _INTEGERS.map(str),
        st.sampled_from(("TRUE", "false")),
    ),
    _compound,
    max_leaves=12,
)


def _valid(text: str) -> str:
    return text.replace("\n", " ")


EVENTS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "specversion": st.just("1.0"),
        "id": st.sampled_from(("1", "e-7")),
        "source": st.sampled_from(("/eu/x", "/us")),
        "type": st.just("t"),
    },
    optional={
        "subject": STRINGS.map(_valid).filter(bool),
        "tier": STRINGS.map(_valid),
        "hops": _INTEGERS,
        "urgent": st.booleans(),
    },
)
