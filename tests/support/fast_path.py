"""Compare results with and without the fast path, and values that it could mistake for common ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any

import pytest

from ce_nats import Timestamp
from ce_nats.codec.fast._blocks import block_shapes, unescaped_shapes
from ce_nats.codec.fast._compile import header_decoders, header_encoders, member_encoders
from ce_nats.codec.fast._frames import blocks_with_id, blocks_without_id
from tests.support.strategies import outcome, without_fast_path

MODES = ["binary", "structured"]
CONVERTERS = (
    *(block_shapes, unescaped_shapes, header_decoders, header_encoders, member_encoders),
    *(blocks_with_id, blocks_without_id),
)


def check_agreement(call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Check that a call has the same outcome with and without the fast path, also when its values are cached."""
    fast = outcome(call, *args, **kwargs)
    assert outcome(call, *args, **kwargs) == fast
    with without_fast_path():
        assert outcome(call, *args, **kwargs) == fast


@contextmanager
def without_full_codec() -> Iterator[None]:
    """Let every call of the full codec fail the test."""

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("the full codec was called")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("binary.encode", "binary.decode", "structured.encode", "structured.decode"):
            patch.setattr(f"ce_nats.codec.{name}", fail)
        yield


class NatsLike:
    """A message of another library."""

    def __init__(self, headers: Any, data: Any) -> None:
        self.headers = headers
        self.data = data


# Attributes of a common event, and their header values.
COMMON = {
    "specversion": "1.0",
    "id": "a b",
    "source": "/ü",
    "type": "t",
    "time": "2020-01-01T00:00:00.5Z",
    "datacontenttype": "application/json",
    "dataschema": "https://example.com/s",
    "x": "%",
    "y": "plain",
}
ENCODED = {
    "specversion": "1.0",
    "id": "a%20b",
    "source": "/%C3%BC",
    "type": "t",
    "time": "2020-01-01T00:00:00.5Z",
    "datacontenttype": "application/json",
    "dataschema": "https://example.com/s",
    "x": "42",
    "y": "plain",
}


DATA = {"n": 1, "items": [{"a": "é"}, None]}


class Text(str):
    """A string of another class."""


class Member(str, Enum):
    ONE = "1.0"
    UTC = "2020-01-01T00:00:00Z"


ODD_TEXTS = [
    "",
    " ",
    " a",
    "a ",
    "\t",
    "a\tb",
    "\n",
    "=\n",
    "\r\n",
    "\0",
    "\x1f",
    "\x7f",
    "\x80",
    "\xa0",
    "é",
    "€",
    "😀",
    "\ufdd0",
    "\uffff",
    "\ud83d\ude00",
    "\ud83d",
    "\ude00",
    "\u2028",
    "\u0378",
    '"',
    '"a"',
    '"a b"',
    '"a',
    'a"b"c',
    "\\",
    "a\\b",
    '\\"',
    "%",
    "%%",
    "%4",
    "%41",
    "%zz",
    "%C3%A9",
    "%c3%a9",
    "%C3",
    "%C0%A0",
    "%ED%A0%80",
    "%00",
    "%7F",
    "%20a%20",
    "=",
    "=41",
    "%3D",
    "=%41",
    "%41=",
    "%=41",
    "1.0",
    "%31.0",
    "1.0 ",
    "0.3",
    "text/plain",
    "text/plain; charset=latin1",
    "application/json; charset=utf-16",
    "image/png",
    "no type",
    "a:b",
    "/relative",
    "2020-01-01T00:00:00Z",
    "2020-01-01t00:00:00z",
    "2020-01-01T00:00:00.123456789+02:00",
    "2020-01-01T00:00:00.120Z",
    "2020-01-01T00:00:00-00:00",
    "2020-01-01T00:00:00+00:00",
    "2020-01-01T00:00:00+23:59",
    "2020-01-01T00:00:00+24:00",
    "2020-01-01T00:00:00",
    "2020-01-01",
    "20200101T000000Z",
    "2020-W01-1T00:00:00Z",
    "2020-01-01 00:00:00Z",
    "2016-12-31T23:59:60Z",
    "2020-02-30T00:00:00Z",
    "0000-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "2020-01-01T24:00:00Z",
    "2020-01-01T00:00:00,5Z",
    "2020-01-01T00:00:00.1234567Z",
    "true",
    "42",
    "x" * 300,
    "é" * 300,
    "%41" * 300,
]
ODD_VALUES = [
    *ODD_TEXTS,
    None,
    True,
    0,
    5,
    -(2**31),
    2**31,
    1.5,
    b"",
    b"x",
    [],
    {},
    Text("a"),
    Text("1.0"),
    Member.ONE,
    Member.UTC,
    object,
    datetime(2020, 1, 1),
    datetime(2020, 1, 1, tzinfo=timezone.utc),
    datetime(5, 1, 1, 1, 1, 1, 1, timezone.utc),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=2))),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(seconds=1))),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(0))),
    Timestamp("2020-01-01T00:00:00.123456789+02:00"),
    Timestamp("2020-01-01T00:00:00Z").replace(tzinfo=None),
    Timestamp("2016-12-31T23:59:60Z"),
]
