"""Map exceptions of nats-py, and errors in responses of JetStream, to :class:`~ce_nats.DeliveryError` with a code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from ..errors import ApiError, DeliveryError, EncodeError, ErrorCode, preview
from . import _server_codes as codes
from .link._link import Link

# The API uses the status codes of HTTP: "code": 503, "description": "JetStream system temporarily unavailable".
_SERVER_ERRORS: Final = 500

# Those of status 500 are not temporary.
_API_CODES: Final = {
    codes.NO_MESSAGE_FOUND: ErrorCode.MESSAGE_NOT_FOUND,
    codes.SEQUENCE_NOT_FOUND: ErrorCode.MESSAGE_NOT_FOUND,
    codes.STREAM_INVALID_CONFIG: ErrorCode.REQUEST_REFUSED,
    codes.MESSAGE_DELETE_FAILED: ErrorCode.REQUEST_REFUSED,
    codes.STREAM_NOT_FOUND: ErrorCode.STREAM_NOT_FOUND,
    codes.CONSUMER_NOT_FOUND: ErrorCode.CONSUMER_NOT_FOUND,
    codes.ROLLUP_FAILED: ErrorCode.PUBLISH_REFUSED,
    **dict.fromkeys(codes.NO_JETSTREAM, ErrorCode.NO_RESPONDERS),
}
# A retry of CONSUMER_CREATE does not help if a consumer has the name, and another value of a setting: "start sequence
# can not be updated", "can not update push consumer to pull based".
_UNCHANGEABLE: Final = ("can not be updated", "can not update")
# The first matching class wins.
_CODES: Final[tuple[tuple[type[Exception], ErrorCode], ...]] = (
    (nats.errors.NoRespondersError, ErrorCode.NO_RESPONDERS),
    (nats.js.errors.NoStreamResponseError, ErrorCode.NO_RESPONDERS),
    (asyncio.TimeoutError, ErrorCode.TIMEOUT),  # a base class of nats.errors.TimeoutError; since 3.11 it is an OSError
    (nats.errors.ConnectionClosedError, ErrorCode.CONNECTION_CLOSED),
    (nats.errors.ConnectionDrainingError, ErrorCode.CONNECTION_CLOSED),
    (nats.errors.StaleConnectionError, ErrorCode.CONNECTION_CLOSED),
    (OSError, ErrorCode.CONNECTION_CLOSED),
    (nats.errors.NoServersError, ErrorCode.CONNECTION_FAILED),
    (nats.errors.AuthorizationError, ErrorCode.AUTHENTICATION_FAILED),
    (nats.errors.OutboundBufferLimitError, ErrorCode.BUFFER_FULL),
    (nats.errors.BadSubscriptionError, ErrorCode.NOT_OPEN),
)


@contextmanager
def delivery_errors(
    target: str, nc: Client | None = None, *, refused: ErrorCode = ErrorCode.REQUEST_REFUSED
) -> Iterator[None]:
    """
    Convert errors of nats-py to errors of this package.

    Raises:
        EncodeError: ``invalid-header-name``, ``invalid-subject`` or ``payload-too-large``, which nats-py checks before
            it sends.
        DeliveryError: All other errors of nats-py.
    """
    try:
        yield
    except nats.errors.BadHeaderError as error:
        raise EncodeError(
            ErrorCode.INVALID_HEADER_NAME, f"nats-py cannot send a header named {preview(error.key)}", header=error.key
        ) from error
    except nats.errors.BadSubjectError as error:
        raise EncodeError(ErrorCode.INVALID_SUBJECT, f"{preview(target)} must be a valid subject") from error
    except nats.errors.MaxPayloadError as error:
        raise EncodeError(ErrorCode.PAYLOAD_TOO_LARGE, f"{target}: {error}") from error
    except nats.errors.ConnectionClosedError as error:
        raise (delivery_error(target, error) if nc is None else Link.of(nc).ending.closed_error(target)) from error
    except nats.errors.Error as error:
        raise delivery_error(target, error, refused=refused) from error


def delivery_error(target: str, error: Exception, *, refused: ErrorCode = ErrorCode.REQUEST_REFUSED) -> DeliveryError:
    """Return the error for an error of nats-py, or for an OSError; the caller sets its cause."""
    if isinstance(error, nats.js.errors.APIError):
        return api_error(target, error.code or 0, error.err_code or 0, error.description or str(error), refused=refused)
    code = next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.DELIVERY_FAILED)
    return DeliveryError(code, f"{target}: {str(error) or type(error).__name__}")


def api_error(
    target: str, status: int, err_code: int, description: str, *, refused: ErrorCode = ErrorCode.REQUEST_REFUSED
) -> ApiError:
    """Return the error for an error in a response of JetStream."""
    code = _API_CODES.get(err_code)
    if err_code == codes.CONSUMER_CREATE and any(text in description for text in _UNCHANGEABLE):
        code = ErrorCode.REQUEST_REFUSED
    if code is None:
        code = ErrorCode.TEMPORARILY_UNAVAILABLE if status >= _SERVER_ERRORS else refused
    error = ApiError(code, f"{target}: {description} ({err_code or status})")
    error.err_code = err_code
    return error
