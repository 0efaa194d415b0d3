"""Patterns of subjects, against every subject of a small alphabet."""

from itertools import product

import pytest

from ce_nats.errors import DecodeError, EncodeError
from ce_nats.subjects import (
    check_name,
    check_pattern,
    check_plain_subject,
    check_subject,
    check_subject_from_message,
    covers,
    disjoint,
    is_literal,
    overlap,
    partition,
)
from tests.support.tables import each

SUBJECTS = [".".join(tokens) for length in (1, 2, 3, 4) for tokens in product("ab", repeat=length)]
PATTERNS = [
    ".".join(tokens) for length in (1, 2, 3) for tokens in product("ab*>", repeat=length) if ">" not in tokens[:-1]
]


def matched(pattern):
    """Return the subjects that a pattern matches, computed token by token."""
    tokens = pattern.split(".")

    def matches(subject):
        others = subject.split(".")
        if tokens[-1] == ">":
            others = [*others[: len(tokens) - 1], ">"] if len(others) >= len(tokens) else others
        return len(tokens) == len(others) and all(a in ("*", b) for a, b in zip(tokens, others))

    return {subject for subject in SUBJECTS if matches(subject)}


def test_covers_and_overlap_agree_with_sets_of_subjects():
    sets = {pattern: matched(pattern) for pattern in PATTERNS}
    assert sets["*.b.>"] == {"a.b.a", "a.b.b", "b.b.a", "b.b.b"} | {
        f"{a}.b.{b}.{c}" for a, b, c in product("ab", repeat=3)
    }
    for one, other in product(PATTERNS, repeat=2):
        assert overlap(one, other) == bool(sets[one] & sets[other]), (one, other)
        if is_literal(other):
            assert covers(one, other) == (sets[other] <= sets[one]), (one, other)
        elif covers(one, other):
            assert sets[other] <= sets[one], (one, other)
    assert covers("a.>", "a.*.>")
    assert not covers("*.b", "*.*")
    assert not covers("a.*", "a.>")


@each(("pattern", "expected"), [("a", True), ("a*.>b", True), ("*", False), ("a.*.b", False), ("a.>", False)])
def test_only_whole_tokens_are_wildcards(pattern, expected):
    assert is_literal(pattern) is expected


@each("pattern", ["a", "a.b", "*", ">", "a.*.>", "a*", ">a.b", "*b.c", "ü.$JS"])
def test_patterns_are_accepted(pattern):
    check_pattern(pattern)


@each("pattern", ["", ".", "a.", ".a", "a..b", "a b", "a\n", "a\t.b", ">.a", "a.>.b", "a\x7f", "\ud800"])
def test_invalid_patterns_are_rejected(pattern):
    with pytest.raises(EncodeError) as info:
        check_pattern(pattern)
    assert info.value.code == "invalid-subject"


@each(
    ("patterns", "expected"),
    [
        ([], ()),
        (["a", "b"], ("a", "b")),
        (["a", "a"], ("a",)),
        (["a.b", "a.*", "c"], ("a.*", "c")),
        (["a.*", "a.b", "c"], ("a.*", "c")),
        (["a.b", "c.d", ">"], (">",)),
        (["a.*.c", "a.b", "a.>"], ("a.>",)),
        (["a.>", "a.*", "b.*"], ("a.>", "b.*")),
    ],
)
def test_covered_patterns_are_omitted(patterns, expected):
    assert disjoint(patterns) == expected


def test_overlapping_patterns_are_rejected():
    with pytest.raises(EncodeError, match=r"'a\.\*' and '\*\.b' overlap"):
        disjoint(["a.*", "*.b"])


@each("pattern", ["a b", ">.a"])
def test_filter_subjects_are_checked(pattern):
    with pytest.raises(EncodeError, match="a subject or pattern must have no white space"):
        disjoint(["a", pattern])


# --- Subjects to publish to -----------------------------------------------------------------------------------------


@each("subject", ["a", "a.b", "$KV.b.k", "ü.{x}", "a*", "*a", ">a", "a.b>.c", "a" * 300, "~.!"])
def test_subjects_are_accepted(subject):
    check_subject(subject)
    check_subject_from_message(subject)


@each("start", ["", "a" * 300 + "."])
@each("subject", ["", ".", "a.", ".a", "a..b", "*", ">", "a.*", "*.a", "a.>.b", "a b", "a\x7f", "a\0", "\ud800"])
def test_invalid_subjects_are_rejected(subject, start):
    for check in (check_subject, check_plain_subject, check_subject_from_message):
        with pytest.raises(EncodeError) as info:
            check(start + subject)
        assert info.value.code == "invalid-subject"
    with pytest.raises(DecodeError) as refused:
        check_subject(start + subject, DecodeError)
    assert refused.value.code == "invalid-subject"


@each("subject", [None, 5, b"a"])
def test_subjects_are_strings(subject):
    for check in (check_subject, check_plain_subject, check_subject_from_message):
        with pytest.raises(EncodeError, match=r"a subject to publish to must have no white space, .*, got ") as info:
            check(subject)
        assert info.value.code == "invalid-subject"


def test_names_have_no_dots():
    check_name("a stream", "ORDERS")
    for name in ("a.b", "a ", "", "*"):
        with pytest.raises(EncodeError) as info:
            check_name("a stream", name)
        assert info.value.code == "invalid-subject"
    with pytest.raises(EncodeError, match="a stream must be a name without dots, got "):
        check_name("a stream", "a.b")


def test_templates_are_not_subjects():
    check_plain_subject("a.b}")
    for subject in ("a.{id}", "{"):
        with pytest.raises(EncodeError) as info:
            check_plain_subject(subject)
        assert info.value.code == "invalid-subject"


def is_forbidden(subject, **options):
    try:
        check_subject_from_message(subject, **options)
    except EncodeError as error:
        return error.code == "forbidden-subject"
    return False


@each("subject", ["$", "$JS", "$JS.API.INFO", "$JS.ACK.S.c.1.1.1.1.0", "$SYS.x", "$KVs.b", "$OBJ.b", "$a"])
def test_subjects_of_the_server_are_forbidden(subject):
    """Whatever patterns are allowed."""
    assert is_forbidden(subject)
    assert is_forbidden(subject, allowed=[">", subject])
    assert is_forbidden(subject, is_reply=True)


@each("subject", ["$KV", "$KV.b.k", "$O.b.M.x"])
def test_keys_and_objects_are_data_unless_they_are_a_reply_subject(subject):
    assert not is_forbidden(subject)
    assert is_forbidden(subject, is_reply=True)


@each(
    "subject", ["a", "a.$JS", "_INBOX.x", "STREAM.PURGE.S", "a.STREAM.INFO.S", "a.STREAM.PURGED", "a.STREAM.X.Y.PURGE"]
)
def test_other_subjects_are_data(subject):
    assert not is_forbidden(subject)
    assert not is_forbidden(subject, is_reply=True)


@each(
    "request_",
    [
        "STREAM.PURGE.S",
        "STREAM.CREATE",
        "CONSUMER.MSG.NEXT.S.c",
        "META.LEADER.STEPDOWN",
        "SERVER.REMOVE",
        "ACCOUNT.STREAM.MOVE.x",
    ],
)
def test_requests_to_jetstream_are_forbidden_under_any_prefix(request_):
    """If no pattern of allowed subjects covers them, and the prefix is not known to be that of the API."""
    subject = f"hub.api.{request_}"
    assert is_forbidden(subject)
    assert is_forbidden(subject, allowed=["hub.api", "hub.other.>", "*"])
    assert not is_forbidden(subject, allowed=["x", "hub.>"])
    assert is_forbidden(subject, allowed=["hub.>"], api_prefixes=["x", "hub.api"])


def test_known_prefixes_of_the_api_are_forbidden():
    assert is_forbidden("hub.api", api_prefixes=["hub.api"])
    assert is_forbidden("hub.api.INFO", api_prefixes=["x", "hub.api"])
    assert not is_forbidden("hub.apis.INFO", api_prefixes=["hub.api"])
    assert not is_forbidden("hub", api_prefixes=["hub.api"])


# --- Partitions -----------------------------------------------------------------------------------------------------


@each(
    ("key", "number"),
    [
        ("", 0x811C9DC5),
        ("a", 0xE40C292C),
        ("foobar", 0xBF9CF968),
        (b"foobar", 0xBF9CF968),
        (["foo", "bar"], 0xBF9CF968),
    ],
)
def test_partition_is_the_fnv_1a_hash_modulo_the_count(key, number):
    """Test vectors of the hash's authors."""
    for count in (1, 2, 8, 1000, 2**31 - 1):
        assert partition(key, count) == number % count


@each("count", [0, -1, 2**31])
def test_partition_counts_out_of_range_are_rejected(count):
    with pytest.raises(ValueError, match=r"count must be from 1 to 2147483647, got "):
        partition("a", count)


@each(("key", "count"), [("a", "8"), ("a", 8.0), ("a", True), (None, 8), (5, 8), ([1], 8), (["a", None], 8)])
def test_partition_arguments_of_other_types_are_rejected(key, count):
    with pytest.raises(TypeError, match=r"^(count|key) must be "):
        partition(key, count)


def test_partition_of_an_unpaired_surrogate_is_rejected():
    with pytest.raises(ValueError, match="unpaired surrogates"):
        partition("\ud800", 8)
