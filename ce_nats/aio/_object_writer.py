"""
Write objects of JetStream's object store: chunks, and metadata that refers to them (ADR-20).

nats-py's ``put()`` deletes the chunks of an object if the acknowledgement of its metadata does not arrive, although the
metadata may be stored. Here each message names the last sequence of its subject, so the server stores it once, however
often it is sent, and refuses a copy that arrives late. Chunks are deleted only if no metadata can refer to them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Final

from nats.aio.client import Client
from nats.js import JetStreamContext

from ..errors import ApiError, DeliveryError, ErrorCode
from . import _server_codes as codes
from ._errors import delivery_errors
from ._jetstream_api import StreamApi
from ._util.patience import Patience
from .link._client import api_timeout, client_of
from .link._link import answered

_log: Final = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 128 * 2**10
# Space for the headers of a chunk in a message of the server's maximum size.
_HEADER_BYTES: Final = 256
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_ROLLUP: Final = {"Nats-Rollup": "sub"}
_WRONG_SEQUENCE: Final = (codes.WRONG_LAST_SEQUENCE, codes.UNKNOWN_LAST_SEQUENCE)
_TEMPORARY: Final = {
    ErrorCode.NO_RESPONDERS,
    ErrorCode.TIMEOUT,
    ErrorCode.TEMPORARILY_UNAVAILABLE,
    ErrorCode.BUFFER_FULL,
}
# Errors after which a message is certainly not stored.
_NOT_STORED: Final = {
    ErrorCode.NO_RESPONDERS,
    ErrorCode.BUFFER_FULL,
    ErrorCode.PERMISSION_DENIED,
    ErrorCode.REQUEST_REFUSED,
    ErrorCode.PUBLISH_REFUSED,
}
# Time to delete chunks after an error or a cancellation.
_DISCARD_SECONDS: Final = 2.0


class ObjectWriter:
    """Writes objects to a bucket."""

    def __init__(self, js: JetStreamContext, bucket: str, api: StreamApi, retry_timeout: float) -> None:
        self._js = js
        self._nc = client_of(js)
        self._bucket = bucket
        self._stream = f"OBJ_{bucket}"
        self._api = api
        self._timeout = api_timeout(js)
        self._retry_timeout = retry_timeout

    async def write(self, name: str, payload: bytes, digest: bytes, expected: int) -> bool:
        """
        Store an object, unless another client changes its metadata or its chunks in the meantime.

        If it fails, or is cancelled, its chunks are deleted, except if the metadata may be stored.

        Returns whether it is stored; False if another client has stored, replaced or deleted something.

        Raises:
            EncodeError: ``payload-too-large``: the server has lowered its ``max_payload`` in the meantime.
        """
        size = max(1, min(_CHUNK_BYTES, self._nc.max_payload - _HEADER_BYTES))
        info = {
            "name": name,
            "bucket": self._bucket,
            "nuid": token_hex(11),
            "size": len(payload),
            "chunks": -(-len(payload) // size),
            "digest": f"SHA-256={urlsafe_b64encode(digest).decode()}",
            "options": {"max_chunk_size": size},
        }
        metadata = _Message(metadata_subject(self._bucket, name), json.dumps(info).encode(), expected, _ROLLUP)
        chunks = chunk_subject(self._bucket, str(info["nuid"]))
        is_stored = False
        try:
            is_stored = await self._write_chunks(chunks, payload, size) and await self._store(metadata) is not None
            return is_stored
        finally:
            # If the metadata was refused because of its expected sequence, a late copy is refused, too.
            if not is_stored and not metadata.may_be_stored:
                await self._discard(chunks)

    async def remove_replaced(self, nuid: str) -> None:
        """Delete the chunks of an object that was replaced. A failure is logged: the new object is stored."""
        try:
            await self._api.purge(self._stream, chunk_subject(self._bucket, nuid))
        except DeliveryError as error:
            _log.warning("bucket %s: the chunks of a replaced object could not be deleted: %s", self._bucket, error)

    async def _write_chunks(self, subject: str, payload: bytes, size: int) -> bool:
        """Store the chunks of an object; return False if another client has changed or deleted some."""
        sequence = 0
        for start in range(0, len(payload), size):
            stored = await self._store(_Message(subject, payload[start : start + size], sequence))
            if stored is None:
                return False
            sequence = stored
        return True

    async def _store(self, message: _Message) -> int | None:
        """Store a message once, and return its sequence; None if another one is the last one of its subject."""
        patience = Patience(self._timeout, self._retry_timeout)
        while True:
            try:
                return await self._publish(message, patience.seconds)
            except DeliveryError as error:
                if isinstance(error, ApiError) and error.err_code in _WRONG_SEQUENCE:
                    with bucket_errors(self._bucket, self._nc):
                        last = await self._api.stored(self._stream, {"last_by_subj": message.subject})
                    sequence = 0 if last is None else last.seq
                    if last is not None and sequence > message.expected:
                        message.may_be_stored = False
                        return sequence if last.data == message.data else None
                    if sequence < message.expected:
                        return None
                    # An earlier copy is still being replicated.
                elif not is_temporary(error):
                    raise
                if not await patience.wait():
                    raise

    async def _publish(self, message: _Message, timeout: float) -> int:
        headers = {_EXPECTED: str(message.expected), **message.headers}
        subject = message.subject
        was_open, message.may_be_stored = message.may_be_stored, True
        try:
            with bucket_errors(self._bucket, self._nc):
                ack = await answered(
                    self._nc, subject, lambda: self._js.publish(subject, message.data, timeout, headers=headers)
                )
        except DeliveryError as error:
            is_full = isinstance(error, ApiError) and error.err_code == codes.STORE_FAILED
            message.may_be_stored = was_open or not (is_full or error.code in _NOT_STORED)
            raise
        except (AttributeError, TypeError, ValueError) as error:  # another subscriber of the subject has replied
            text = f"bucket {self._bucket}: the reply is not an acknowledgement of a stream"
            raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, text) from error
        return int(ack.seq)

    async def _discard(self, chunks: str) -> None:
        """Delete chunks without metadata, in a short time; they remain if that fails."""
        if self._nc.is_connected:
            purge = self._api.without_retries().purge(self._stream, chunks)
            with suppress(Exception):
                await asyncio.wait_for(purge, _DISCARD_SECONDS)


class _Message:
    """
    Message to store after the last one of its subject.

    Attributes:
        subject: Its subject.
        data: Its payload.
        expected: Sequence of the last message on the subject; 0 if there is none.
        headers: Further headers.
        may_be_stored: Whether a copy was sent whose outcome is unknown.
    """

    def __init__(self, subject: str, data: bytes, expected: int, headers: dict[str, str] | None = None) -> None:
        self.subject = subject
        self.data = data
        self.expected = expected
        self.headers = headers or {}
        self.may_be_stored = False


def chunk_subject(bucket: str, nuid: str) -> str:
    """Return the subject of the chunks of an object."""
    return f"$O.{bucket}.C.{nuid}"


def metadata_subject(bucket: str, name: str) -> str:
    """Return the subject of the metadata of an object."""
    return f"$O.{bucket}.M.{urlsafe_b64encode(name.encode()).decode()}"


def is_temporary(error: DeliveryError) -> bool:
    """Return whether a retry may succeed."""
    return error.code in _TEMPORARY and not (isinstance(error, ApiError) and error.err_code == codes.STORE_FAILED)


@contextmanager
def bucket_errors(bucket: str, nc: Client) -> Iterator[None]:
    """Convert errors of nats-py, and name the bucket if it does not exist."""
    try:
        with delivery_errors(f"bucket {bucket}", nc):
            yield
    except ApiError as error:
        if error.code is not ErrorCode.STREAM_NOT_FOUND:
            raise
        renamed = ApiError(error.code, f"there is no bucket {bucket}")
        renamed.err_code = error.err_code
        raise renamed from error
