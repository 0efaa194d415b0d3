"""
Typed data: encoding of models, and ``data_as()``.
"""

import dataclasses
import json
import subprocess
import sys
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict as NewTypedDict

from ce_nats import DecodeError, EncodeError, NatsMessage, from_nats_message, to_nats_message
from ce_nats.codec.event import DecodedEvent, NotDelivered
from ce_nats.codec.models import check_model
from tests.support.strategies import binary_message, plain_event, refused, structured_message
from tests.support.tables import each

JSON = "application/json"


class Colour(Enum):
    RED = "red"


class Struct(msgspec.Struct):
    number: int
    price: Decimal
    at: datetime
    key: UUID
    day: date | None = None
    counts: dict[int, float] = {}
    octets: bytes = b""
    colour: Colour = Colour.RED


@dataclasses.dataclass
class Record:
    number: int
    price: Decimal
    at: datetime
    key: UUID
    others: list[Struct] = dataclasses.field(default_factory=list)


class Model(pydantic.BaseModel):
    number: int = pydantic.Field(alias="orderNumber")
    price: Decimal
    at: datetime
    key: UUID
    day: date | None = None
    counts: dict[int, float] = {}
    took: timedelta = timedelta(0)
    tags: set[str] = set()


@pydantic_dataclass
class Checked:
    number: pydantic.PositiveInt


@pydantic_dataclass
class Lenient:
    number: int


@dataclasses.dataclass
class Secret:
    text: pydantic.SecretStr


@dataclasses.dataclass
class Holder:
    model: Model
    link: pydantic.AnyUrl | None = None


@dataclasses.dataclass
class Box:
    content: Any


@dataclasses.dataclass
class Node:
    number: int
    nodes: "list[Node]" = dataclasses.field(default_factory=list)


class Typed(TypedDict):
    number: int
    name: str


class TypedHolder(NewTypedDict):  # pydantic requires this class before Python 3.12
    models: list[Model]


moments = st.datetimes(timezones=st.just(timezone.utc))
decimals = st.decimals(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**70), 2**70)
counts = st.dictionaries(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), max_size=3)
structs = st.builds(
    Struct, integers, decimals, moments, st.uuids(), st.none() | st.dates(), counts, st.binary(max_size=5)
)
models = st.builds(
    Model,
    orderNumber=integers,
    price=decimals,
    at=moments,
    key=st.uuids(),
    day=st.none() | st.dates(),
    counts=counts,
    tags=st.sets(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=3),
)
records = st.builds(Record, integers, decimals, moments, st.uuids(), st.lists(structs, max_size=2))
typed: st.SearchStrategy[tuple[Any, Any]] = st.one_of(
    structs.map(lambda value: (value, Struct)),
    records.map(lambda value: (value, Record)),
    models.map(lambda value: (value, Model)),
    st.lists(models | structs.map(lambda _: None), max_size=3).map(lambda value: (value, list[Model | None])),
    st.lists(records, max_size=2).map(lambda value: (value, list[Record])),
    models.map(lambda value: (Holder(value, pydantic.AnyUrl("https://example.com/")), Holder)),
    models.map(lambda value: ({"models": [value]}, TypedHolder)),
    st.builds(Checked, st.integers(1, 5)).map(lambda value: (value, Checked)),
)


@pytest.mark.parametrize("content_type", [..., JSON, "application/vnd.x+json"])
@pytest.mark.parametrize("mode", ["binary", "structured"])
@given(pair=typed, parse_data=st.booleans())
def test_models_round_trip(mode: Any, content_type: Any, parse_data: bool, pair: tuple[Any, Any]) -> None:
    value, model = pair
    message = to_nats_message(plain_event(value, datacontenttype=content_type), mode=mode)
    assert from_nats_message(message, parse_data=parse_data).data_as(model) == value


@given(models)
def test_models_are_encoded_like_in_pydantic(model: Model) -> None:
    payload = to_nats_message(plain_event(model)).data
    assert json.loads(payload) == json.loads(model.model_dump_json(by_alias=True))


@given(models)
def test_models_in_fields_of_any_type_are_encoded(model: Model) -> None:
    payload = to_nats_message(plain_event(Box([model]))).data
    assert json.loads(payload) == {"content": [json.loads(model.model_dump_json(by_alias=True))]}


@given(structs)
def test_structs_are_encoded_like_in_msgspec(struct: Struct) -> None:
    payload = to_nats_message(plain_event({"deep": [struct]})).data
    assert json.loads(payload) == json.loads(b'{"deep":[%b]}' % msgspec.json.encode(struct))


@each(
    "value",
    [
        Struct(1, Decimal(1), datetime(2020, 1, 1), UUID(int=1), counts={1: float("nan")}),
        Record(1, Decimal(1), object(), UUID(int=1)),
        Model.model_construct(number=object()),
        Model(orderNumber=1, price=1, at=0, key=UUID(int=1), counts={1: float("inf")}),
        Typed(number=1, name="\ud800"),
        [Struct(1, Decimal(1), datetime(2020, 1, 1), UUID(int=1)), datetime(2020, 1, 1)],
        Struct,
        Model,
    ],
)
@each("mode", ["binary", "structured"])
def test_values_outside_of_json_in_a_model_are_rejected(mode: Any, value: Any) -> None:
    assert refused(EncodeError, "invalid-data", to_nats_message, plain_event(value), mode=mode).attribute == "data"


def test_exceptions_of_a_model_are_encode_errors() -> None:
    class Failing(pydantic.BaseModel):
        x: int = 1

        @pydantic.field_serializer("x")
        def write(self, x: int) -> str:
            raise KeyError(x)

    refused(EncodeError, "invalid-data", to_nats_message, plain_event({"a": Failing()}))


@each("mode", ["binary", "structured"])
def test_models_are_json_only(mode: Any) -> None:
    event = plain_event(Checked(1), datacontenttype="text/plain")
    refused(EncodeError, "invalid-data", to_nats_message, event, mode=mode)


# --- Decoding ---------------------------------------------------------------------------------------------------------


def received(data: bytes, content_type: str | None = JSON, parse_data: bool = True) -> DecodedEvent:
    attributes = {} if content_type is None else {"datacontenttype": content_type}
    return from_nats_message(binary_message(data, **attributes), parse_data=parse_data)


STRUCTURED = b'{"specversion":"1.0","id":"1","source":"/s","type":"t"%b}'


def events(member: bytes, data: bytes) -> list[DecodedEvent]:
    """Return an event decoded in both modes, parsed and not."""
    structured = structured_message(STRUCTURED % member)
    return [
        *(received(data, parse_data=parse) for parse in (True, False)),
        *(from_nats_message(structured, parse_data=parse) for parse in (True, False)),
    ]


@each(
    ("text", "model", "value"),
    [
        (b'{"number":1,"name":"a"}', Typed, {"number": 1, "name": "a"}),
        (b'{"number":1}', Checked, Checked(1)),
        (b'{"number":1,"nodes":[{"number":2}]}', Node, Node(1, [Node(2)])),
        (b"[1,2]", list[int], [1, 2]),
        (b"[1,2]", tuple[int, int], (1, 2)),
        (b"null", Checked | None, None),
        (b'"2020-01-01T00:00:00Z"', datetime, datetime(2020, 1, 1, tzinfo=timezone.utc)),
        (b'{"1":2}', dict[int, int], {1: 2}),
        (b'"a"', Literal["a", "b"], "a"),
        (b'"red"', Colour, Colour.RED),
        (b"5", pydantic.PositiveInt, 5),
        (b'{"number":"5"}', Lenient, Lenient(5)),  # pydantic converts the string, msgspec would not
        (b'{"text":"a"}', Secret, Secret(pydantic.SecretStr("a"))),
        (b"5", Annotated[int, {"not": "hashable"}], 5),
        (b'"AAE="', bytes, b"\0\1"),
        (b"1e3", Any, 1000.0),
    ],
)
def test_same_value_in_both_modes_parsed_or_not(text: bytes, model: Any, value: Any) -> None:
    found = [event.data_as(model) for event in events(b',"data":' + text, text)]
    assert found == [value] * 4
    assert {type(one) for one in found} == {type(value)}


@each(
    ("text", "model", "reason"),
    [
        (b'{"number":1}', Typed, "missing required field `name`"),
        (b'{"number":"1","name":"a"}', Typed, "`$.number`"),
        (b'{"number":0}', Checked, "greater than 0 - at `$.number`"),
        (b'[{"number":1},{"number":-1},{}]', list[Checked], "at `$[1].number` (and 1 more)"),
        (b"0", pydantic.PositiveInt, "greater than 0 - at `$`"),
        (b"0", Annotated[int, pydantic.Field(gt=0)], "greater than 0 - at `$`"),
        (b'{"number":"1"}', Node, "Expected `int`, got `str` - at `$.number`"),  # pydantic would convert the string
        (b"[1]", Struct, "the data must be Struct: Expected `object`, got `array`"),
        (b"null", Struct, "got `null`"),
        (b'"1"', int, "Expected `int`, got `str`"),
    ],
)
def test_data_of_another_type_is_a_mismatch(text: bytes, model: Any, reason: str) -> None:
    for event in events(b',"data":' + text, text):
        error = refused(DecodeError, "data-mismatch", event.data_as, model)
        assert error.attribute == "data"
        assert error.message.endswith(reason)
        assert "\n" not in error.message
        assert isinstance(error.__cause__, ValueError)


def test_missing_data_is_null() -> None:
    for event in events(b"", b""):
        assert event.data_as(Struct | None) is None
        error = refused(DecodeError, "data-mismatch", event.data_as, Struct)
        assert error.message == "the data must be Struct: the event has no data"
    empty = structured_message(STRUCTURED % b',"datacontenttype":"application/json","data_base64":""')
    for parse_data in (True, False):
        assert from_nats_message(empty, parse_data=parse_data).data_as(int | None) is None


@each("text", [b"{", b"NaN", b"[1]]", b"\xff", b'{"a":"\xff"}', b"[" * 200 + b"]" * 200])
@each("model", [Any, Checked, Struct, Typed, dict[str, Any]])
def test_invalid_json_is_a_mismatch(text: bytes, model: Any) -> None:
    """If it was not parsed before; pydantic alone would accept NaN, for example."""
    error = refused(DecodeError, "data-mismatch", received(text, parse_data=False).data_as, model)
    assert isinstance(error.__cause__, DecodeError)
    assert error.__cause__.code in ("invalid-json", "invalid-utf8")


@each("parse_data", [True, False])
def test_text_and_bytes_are_converted(parse_data: bool) -> None:
    latin = received(b"\xe9", "text/plain; charset=iso-8859-1", parse_data)
    assert latin.data_as(str) == "é"
    refused(DecodeError, "data-mismatch", latin.data_as, Struct)
    refused(DecodeError, "data-mismatch", latin.data_as, bytes)
    image = received(b"\x89PNG", "image/png", parse_data)
    assert image.data_as(bytes) == b"\x89PNG"
    refused(DecodeError, "data-mismatch", image.data_as, Checked)
    untyped = received(b'{"number":1}', None, parse_data)
    assert untyped.data_as(bytes) == b'{"number":1}'
    refused(DecodeError, "data-mismatch", untyped.data_as, Checked)
    wrong = received(b"\xff", "text/plain", False)
    refused(DecodeError, "data-mismatch", wrong.data_as, str)


def test_base64_data_in_a_json_event() -> None:
    message = structured_message(STRUCTURED % b',"datacontenttype":"application/json","data_base64":"eyJudW1iZXIiOjF9"')
    for parse_data in (True, False):
        assert from_nats_message(message, parse_data=parse_data).data_as(Checked) == Checked(1)


def test_digits_beyond_a_float_need_unparsed_data() -> None:
    text = b"0.1000000000000000000000000000001"
    assert str(received(text, parse_data=False).data_as(Decimal)) == text.decode()
    assert received(text).data_as(Decimal) == Decimal("0.1")


def test_data_of_an_event_from_the_program() -> None:
    assert DecodedEvent({}, Checked(1)).data_as(Checked) == Checked(1)
    assert DecodedEvent({}, {"number": 1}).data_as(Checked) == Checked(1)
    assert DecodedEvent({}, b"1").data_as(bytes) == b"1"


class Unknown:
    pass


class HoldsUnknown(msgspec.Struct):
    number: Unknown


class HoldsModel(msgspec.Struct):
    number: Checked
    model: Model


@each("model", [Unknown, HoldsUnknown, HoldsModel, 5, "Struct"])
def test_unsupported_types_are_type_errors(model: Any) -> None:
    with pytest.raises(TypeError):
        received(b'{"number":{"number":1},"model":{}}').data_as(model)


@each("model", [Struct, Record, Model, int, list[Struct], dict[str, Any], Struct | None, Any])
def test_supported_types_pass_the_check(model: Any) -> None:
    check_model(model)


@each("model", [Unknown, int | Unknown, 5, "Struct"])
def test_check_rejects_unsupported_types(model: Any) -> None:
    with pytest.raises(TypeError, match="the type must be one that msgspec or pydantic can read, got "):
        check_model(model)


def test_undelivered_data_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="headers-only"):
        DecodedEvent({}, NotDelivered(3)).data_as(Any)
    refused(EncodeError, "invalid-data", to_nats_message, plain_event(NotDelivered(3)))


def test_pydantic_is_optional() -> None:
    """It is not imported for other types."""
    program = """
import sys; sys.modules["pydantic"] = None
import dataclasses, msgspec
from ce_nats.codec.event import DecodedEvent
class S(msgspec.Struct):
    x: int
@dataclasses.dataclass
class D:
    x: list[S]
assert DecodedEvent({}, D([S(1)])).data_as(D) == D([S(1)])
"""
    for text in (
        program,
        program.replace('; sys.modules["pydantic"] = None', "") + 'assert "pydantic" not in sys.modules',
    ):
        subprocess.run([sys.executable, "-c", text], check=True)


@given(st.binary(max_size=20), st.sampled_from([JSON, "text/plain", "image/png"]))
def test_any_payload_is_converted_or_a_mismatch(payload: bytes, content_type: str) -> None:
    event = from_nats_message(
        NatsMessage("s", payload, {**dict(binary_message().headers.items()), "ce-datacontenttype": content_type}),
        parse_data=False,
    )
    for model in (Struct, Record, Model, list[Model], Typed, str, bytes, int | None):
        try:
            event.data_as(model)
        except DecodeError as error:
            assert error.code == "data-mismatch"  # noqa: PT017
