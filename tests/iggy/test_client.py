"""Messages of apache-iggy that are not valid. The tests of interoperability convert those of the client itself."""

from types import SimpleNamespace

import pytest

from ce_nats import DecodeError
from ce_nats.iggy import from_client_message
from tests.support.tables import each


class UnsignedInt8(SimpleNamespace):
    """As a key or a value of the client, whose number is larger than its kind."""

    __hash__ = object.__hash__


class HeaderKind(SimpleNamespace):
    """A class that the client does not have."""

    __hash__ = object.__hash__


def received(headers):
    methods = {"user_headers": headers, "payload": b"x", "id": 1, "offset": 2, "timestamp": 3}
    return SimpleNamespace(**{name: lambda value=value: value for name, value in methods.items()})


@each(
    ("message", "code"),
    [
        (b"payload", "invalid-message"),
        (received({HeaderKind(value="a"): UnsignedInt8(value=1)}), "unknown-header-kind"),
        (received({UnsignedInt8(value=1): UnsignedInt8(value=256)}), "invalid-header-value"),
    ],
)
def test_invalid_messages_are_refused(message, code):
    with pytest.raises(DecodeError) as info:
        from_client_message(message)
    assert info.value.code == code


def test_a_message_may_have_no_headers():
    assert from_client_message(received(None)).headers == {}
