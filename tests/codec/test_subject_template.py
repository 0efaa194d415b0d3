"""
Subjects from attributes: values cannot add tokens, and every subject can be parsed.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import EncodeError, SubjectTemplate, Timestamp, to_nats_message
from ce_nats.codec.subject_template import subject_of_text
from ce_nats.subjects import covers, partition
from tests.support.strategies import plain_event
from tests.support.tables import each

# All characters of a CloudEvents String, especially those with a meaning in subjects.
VALUES = st.text(
    st.sampled_from(".*>% $_-/aZ0\u00e9\U0001f600") | st.characters(codec="utf-8", categories=("L", "N", "P"))
)


@each(
    ("template", "subject", "pattern"),
    [
        ("orders.paid", "orders.paid", "orders.paid"),
        ("orders.{type}", "orders.com%2Eexample%2Epaid", "orders.*"),
        ("orders.{type:tokens}", "orders.com.example.paid", "orders.>"),
        ("{source}.v{n}-x.{flag}", "%2Fa%20b.v7-x.true", "*.*.*"),
        ("at.{time}", "at.2020-01-02T03%3A04%3A05%2E123456789Z", "at.*"),
    ],
)
def test_subject_and_wildcard(template: str, subject: str, pattern: str) -> None:
    """Placeholders are replaced by canonical strings, and the wildcard matches the subject."""
    event = plain_event(
        type="com.example.paid", source="/a b", n=7, flag=True, time=Timestamp.parse("2020-01-02T03:04:05.123456789Z")
    )
    made = SubjectTemplate(template)
    assert made.format(event) == subject
    assert made.wildcard == pattern
    assert to_nats_message(event, made).subject == subject
    found = made.parse(subject)
    assert found is not None
    assert all(found[name] == str(event.get_attributes()[name]).replace("True", "true") for name in made.names)


@given(VALUES.filter(bool), VALUES)
def test_values_cannot_add_tokens(one: str, other: str) -> None:
    """For any attributes the subject has three tokens, matches the wildcard, and is parsed to the same values."""
    template = SubjectTemplate("a-{one}.b{other}c.d")
    subject = template.format(plain_event(one=one, other=other))
    assert len(subject.split(".")) == 3
    assert subject.isascii()
    assert not set("*> $") & set(subject)
    assert covers(template.wildcard, subject)
    assert template.parse(subject) == {"one": one, "other": other}


@given(VALUES)
def test_dots_make_tokens_with_the_tokens_option(value: str) -> None:
    """An empty part is an error."""
    template = SubjectTemplate("a.{x:tokens}")
    event = plain_event(x=value)
    if not all(value.split(".")):
        with pytest.raises(EncodeError) as info:
            template.format(event)
        assert (info.value.code, info.value.attribute) == ("invalid-subject", "x")
        return
    subject = template.format(event)
    assert subject.count(".") == value.count(".") + 1
    assert covers("a.>", subject)
    assert template.parse(subject) == {"x": value}


@each(
    "subject",
    [*("a", "a.b.c", "b.x-", "a.x", "a.%2d-", "a.%FF-", "a.%e9-", "a.%-", "a.b,c-"), *("a.%41-", ".x-", "a..x-")],
)
def test_other_subjects_are_not_parsed(subject: str) -> None:
    """Only subjects that the template can produce, so that a value has one subject."""
    assert SubjectTemplate("a.{x}-").parse(subject) is None


def test_text_before_and_after_a_placeholder_must_not_overlap() -> None:
    template = SubjectTemplate("ab{x}b")
    assert template.parse("abb") == {"x": ""}
    assert template.parse("ab") is None


def test_repeated_placeholder_must_have_one_value() -> None:
    template = SubjectTemplate("a.{x}.{x}")
    assert template.parse("a.1.1") == {"x": "1"}
    assert template.parse("a.1.2") is None


def test_missing_attribute_is_an_error() -> None:
    """It names the attribute."""
    for event in (plain_event(), plain_event(tenant=None)):
        with pytest.raises(EncodeError) as info:
            SubjectTemplate("orders.{tenant}").format(event)
        assert (info.value.code, info.value.attribute) == ("missing-attribute", "tenant")


def test_empty_value_needs_text_around_it() -> None:
    """A token must not be empty."""
    event = plain_event(tenant="")
    assert SubjectTemplate("orders.t-{tenant}").format(event) == "orders.t-"
    with pytest.raises(EncodeError) as info:
        SubjectTemplate("orders.{tenant}").format(event)
    assert (info.value.code, info.value.attribute) == ("invalid-subject", "tenant")


@each(
    ("template", "code"),
    [
        *(
            (bad, "invalid-subject")
            for bad in ("", "a.*", "a.>", "a*.b", "{", "a}", "{a}{b}", "{a:tokens}.b", "x{a:tokens}")
        ),
        *((bad, "invalid-subject") for bad in ("{a:b}", "a b", "a..b", ".", "{a}\n", "{a.b}", None, 5)),
        *((bad, "invalid-attribute-name") for bad in ("{A}", "{}", "{data}", "{ce-id}")),
    ],
)
def test_invalid_templates_are_rejected(template: Any, code: str) -> None:
    """Wildcards, malformed placeholders and invalid attribute names, by the constructor."""
    with pytest.raises(EncodeError) as info:
        SubjectTemplate(template)
    assert info.value.code == code


def test_string_with_placeholder_is_rejected() -> None:
    """It may contain text of other senders."""
    with pytest.raises(EncodeError, match=r"got 'orders.{type}'; use SubjectTemplate to fill in attributes") as info:
        to_nats_message(plain_event(), "orders.{type}")
    assert info.value.code == "invalid-subject"
    assert to_nats_message(plain_event(), "orders.type}", reply="inbox.{1}").reply == "inbox.{1}"


def test_text_with_a_placeholder_is_a_template() -> None:
    assert subject_of_text("orders.type}") == "orders.type}"
    template = subject_of_text("orders.{type}")
    assert isinstance(template, SubjectTemplate)
    assert template.template == "orders.{type}"


@each("template", ["a b", "a b.{type}"])
def test_error_of_a_template_has_the_invalid_text(template: str) -> None:
    with pytest.raises(EncodeError, match=r"got 'a b'$"):
        SubjectTemplate(template)


def test_attribute_value_is_not_filled_in_again() -> None:
    event = plain_event(id="{type}")
    assert to_nats_message(event, SubjectTemplate("orders.{id}")).subject == "orders.%7Btype%7D"


@given(VALUES, VALUES, st.integers(1, 2**31 - 1))
def test_partition_is_that_of_the_encoded_values(one: str, other: str, count: int) -> None:
    """It is parsed, and compared with the values in the subject; a subject without the values has any number."""
    event = plain_event(one=one, other=other)
    template = SubjectTemplate(f"p{{partition({count},one,other)}}.a{{one}}.a{{other}}")
    subject = template.format(event)
    number, *encoded = [token[1:] for token in subject.split(".")]
    assert int(number) == partition(encoded, count)
    assert template.parse(subject) == {"one": one, "other": other}
    assert covers(template.wildcard, subject)
    short = SubjectTemplate(f"p{{partition( {count} , one, other )}}.x")
    assert short.parse(short.format(event)) == {}
    assert short.parse(f"p{count}.x") is None
    assert short.names == ["one", "other"]
    for wrong in (count, f"0{number}", "-1", "\u0661", "", int(number) + 1):
        assert template.parse(f"p{wrong}.a{encoded[0]}.a{encoded[1]}") is None


def test_partitions_of_ten_digits_are_parsed() -> None:
    template = SubjectTemplate("{partition(2147483647,n)}.{n}")
    subjects = [template.format(plain_event(n=str(number))) for number in range(10)]
    assert max(len(subject.split(".")[0]) for subject in subjects) == 10
    assert [template.parse(subject) for subject in subjects] == [{"n": str(number)} for number in range(10)]


def test_partition_field_needs_its_attribute() -> None:
    with pytest.raises(EncodeError) as info:
        SubjectTemplate("orders.{partition(8,tenant)}").format(plain_event())
    assert (info.value.code, info.value.attribute) == ("missing-attribute", "tenant")


@each(
    ("field", "code"),
    [
        *(
            (bad, "invalid-subject")
            for bad in ("partition(8)", "partition()", "partition(0,type)", "partition(-1,type)")
        ),
        *((bad, "invalid-subject") for bad in ("partition(2147483648,type)", "partition(8,type", "partition(8,type)x")),
        *(
            (bad, "invalid-subject")
            for bad in ("partition(8,type):tokens", "split(8,type)", f"partition({'9' * 5000},a)")
        ),
        *((bad, "invalid-attribute-name") for bad in ("partition(8,)", "partition(8,Type)", "partition(8,type,)")),
    ],
)
def test_invalid_partition_fields_are_rejected(field: str, code: str) -> None:
    with pytest.raises(EncodeError) as info:
        SubjectTemplate(f"orders.{{{field}}}")
    assert info.value.code == code
