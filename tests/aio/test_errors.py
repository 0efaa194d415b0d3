"""Exceptions of nats-py, and errors in answers of JetStream, as errors of this package."""

import asyncio

import nats.errors
import nats.js.errors
import pytest

from ce_nats import ApiError, DeliveryError, EncodeError, ErrorCode
from ce_nats.aio._errors import api_error, delivery_errors
from tests.support.tables import each


def converted(error, **options):
    """Return the error of this package for one of nats-py."""
    with pytest.raises((DeliveryError, EncodeError)) as info, delivery_errors("orders", **options):
        raise error
    assert info.value.__cause__ is error
    return info.value


@each(
    ("error", "code"),
    [
        (nats.errors.NoRespondersError(), "no-responders"),
        (nats.js.errors.NoStreamResponseError(), "no-responders"),
        (nats.errors.TimeoutError(), "timeout"),
        (nats.errors.ConnectionClosedError(), "connection-closed"),
        (nats.errors.ConnectionDrainingError(), "connection-closed"),
        (nats.errors.StaleConnectionError(), "connection-closed"),
        (nats.errors.NoServersError(), "connection-failed"),
        (nats.errors.AuthorizationError(), "authentication-failed"),
        (nats.errors.OutboundBufferLimitError(), "buffer-full"),
        (nats.errors.BadSubscriptionError(), "not-open"),
        (nats.errors.ProtocolError(), "delivery-failed"),
    ],
)
def test_exceptions_of_nats_py_have_a_code(error, code):
    result = converted(error)
    assert (type(result), result.code) == (DeliveryError, code)
    assert result.message.startswith("orders: ")


@each(
    ("error", "code"),
    [
        (nats.errors.BadHeaderError("a b"), "invalid-header-name"),
        (nats.errors.BadSubjectError(), "invalid-subject"),
        (nats.errors.MaxPayloadError(), "payload-too-large"),
    ],
)
def test_messages_that_nats_py_rejects_are_encode_errors(error, code):
    result = converted(error)
    assert (type(result), result.code) == (EncodeError, code)


@each("error", [KeyError("a"), asyncio.CancelledError(), asyncio.TimeoutError()])
def test_other_exceptions_pass_unchanged(error):
    with pytest.raises(type(error)) as info, delivery_errors("orders"):
        raise error
    assert info.value is error


@each(
    ("status", "number", "code"),
    [
        (404, 10037, "message-not-found"),
        (400, 10043, "message-not-found"),
        (404, 10059, "stream-not-found"),
        (404, 10014, "consumer-not-found"),
        (503, 10039, "no-responders"),
        (503, 10076, "no-responders"),
        (500, 10052, "request-refused"),  # a retry cannot succeed
        (500, 10057, "request-refused"),
        (500, 10111, "publish-refused"),
        (503, 10008, "temporarily-unavailable"),
        (500, 0, "temporarily-unavailable"),
        (400, 10071, "request-refused"),
        (400, 0, "request-refused"),
        (499, 0, "request-refused"),
    ],
)
def test_errors_of_the_api_have_a_code_and_the_servers_number(status, number, code):
    error = api_error("orders", status, number, "wrong last sequence")
    assert isinstance(error, ApiError)
    assert (error.code, error.err_code) == (code, number)
    assert error.message == f"orders: wrong last sequence ({number or status})"


@each(
    ("description", "code"),
    [
        ("start sequence can not be updated", "request-refused"),
        ("can not update push consumer to pull based", "request-refused"),
        ("stream is closed", "temporarily-unavailable"),
    ],
)
def test_consumer_that_cannot_be_changed_is_a_refusal(description, code):
    assert api_error("orders", 500, 10012, description).code == code


def test_code_of_a_refusal_is_chosen_by_the_caller():
    error = nats.js.errors.BadRequestError(code=400, err_code=10071, description="wrong last sequence")
    result = converted(error, refused=ErrorCode.PUBLISH_REFUSED)
    assert (type(result), result.code, result.err_code) == (ApiError, "publish-refused", 10071)


@each(
    ("fields", "code", "number", "text"),
    [
        ({"code": 503, "err_code": 10008, "description": "full"}, "temporarily-unavailable", 10008, "full (10008)"),
        ({"code": 503, "description": "full"}, "temporarily-unavailable", 0, "full (503)"),
        ({"description": "full"}, "request-refused", 0, "full (0)"),
        ({"code": 400}, "request-refused", 0, "nats: APIError: code=400 err_code=None description='None' (400)"),
    ],
)
def test_fields_of_an_api_error_can_be_missing(fields, code, number, text):
    result = converted(nats.js.errors.APIError(**fields))
    assert (result.code, result.err_code, result.message) == (code, number, f"orders: {text}")


async def test_closed_connection_has_the_reason_of_its_closing(nc):
    await nc.close()
    error = converted(nats.errors.ConnectionClosedError(), nc=nc)
    assert error.code == "connection-closed"
