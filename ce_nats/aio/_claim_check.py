"""
Store large data of events in an object store, and read it back (claim check).

Objects are read with the reader of streams: nats-py's ``get()`` waits forever for chunks that were deleted, follows
links to other buckets, and copies the data once per chunk.
"""

from __future__ import annotations

import asyncio
import re
from base64 import urlsafe_b64decode
from contextlib import AbstractContextManager, aclosing
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec
from nats.js import JetStreamContext

from .._numbers import check_integer, check_optional_seconds
from .._ranges import StreamRange
from ..codec import binary, data
from ..codec.binding import to_nats_message
from ..codec.event import DecodedEvent, EventLike, attributes_data_and_presence
from ..errors import DataLossError, DecodeError, DeliveryError, EncodeError, ErrorCode, preview
from ..extensions.dataref import DATAREF, ObjectReference, object_name, object_reference
from ._jetstream_api import StreamApi
from ._object_writer import ObjectWriter, bucket_errors, chunk_subject, metadata_subject
from ._util.checks import check_count, check_jetstream
from ._util.patience import RETRY_SECONDS, Patience
from .link._client import api_prefix, api_timeout, client_of
from .reading._range_reader import read_range_on

OVER: Final = 256 * 2**10
MAX_SIZE: Final = 64 * 2**20

_DIGEST: Final = re.compile("(?i:SHA-256)=([A-Za-z0-9_-]{43})=?")
# A random name of chunks, which is a token of their subject.
_NUID: Final = re.compile("[A-Za-z0-9_-]{1,100}")
# Reads of an object that is replaced meanwhile.
_MAX_READS: Final = 5


class _Options(msgspec.Struct):
    link: dict[str, Any] | None = None


class _Metadata(msgspec.Struct):
    """Metadata of an object, which any client with access to the bucket can write."""

    nuid: str = ""
    size: int = 0
    chunks: int = 0
    digest: str = ""
    deleted: bool = False
    options: _Options | None = None


class _Object(NamedTuple):
    """
    An object in the bucket.

    Attributes:
        sequence: Sequence of its metadata, which is after those of its chunks.
        nuid: Token of the subject of its chunks.
        size: Number of bytes.
        chunks: Number of chunks.
        digest: SHA-256 of its content.
    """

    sequence: int
    nuid: str
    size: int
    chunks: int
    digest: bytes


class ClaimCheck:
    """
    Store for large data of events: a bucket of a JetStream object store.

        claim_check = aio.ClaimCheck(js, "ORDERS_DATA")
        async with aio.Publisher(js, claim_check=claim_check) as publisher:
            await publisher.publish(event, "orders.scanned")

        async with aio.PullConsumer(js, "ORDERS", "archive", claim_check=claim_check, ...) as consumer:
            async for delivery in consumer:
                async with delivery:
                    event = await delivery.resolve()

    A publisher stores data of more than ``over`` bytes in the bucket, and then publishes the event without data, with
    the extension attribute ``dataref``. The data is encoded as in the payload of a message; the event keeps its
    ``datacontenttype``. If publishing fails, the object is kept, and a retry uses it if it is complete. Objects are not
    deleted; the program creates the bucket, with a time to live for instance.

    Only this bucket is ever read, whatever the ``dataref`` of an event is.

    Args:
        js: From ``nc.jetstream()``.
        bucket: Name of the bucket, which must exist.
        over: Maximum size of data that is sent in the message, in bytes.
        max_size: Maximum size of data that is stored or read, in bytes.
        retry_timeout: Seconds to repeat requests without a response, during the election of a leader for instance; by
            default 30, or the timeout of ``js`` if that is longer.

    Raises:
        EncodeError: ``invalid-subject``: ``bucket`` is not the name of a bucket.
        TypeError: ``js`` is not a JetStreamContext.
        ValueError: ``over`` is below 0, or ``max_size`` below ``over`` or 1; an argument is not a number.
    """

    def __init__(
        self,
        js: JetStreamContext,
        bucket: str,
        *,
        over: int = OVER,
        max_size: int = MAX_SIZE,
        retry_timeout: float | None = None,
    ) -> None:
        check_jetstream(js)
        check_count("max_size", max_size)
        check_integer("over", over)
        check_optional_seconds("retry_timeout", retry_timeout)
        if not 0 <= over <= max_size:
            raise ValueError(f"over must be from 0 to max_size ({max_size}), got {over}")
        ObjectReference(bucket, "name")
        self.bucket = bucket
        self.over = over
        self.max_size = max_size
        self._js = js
        self._nc = client_of(js)
        self._stream = f"OBJ_{bucket}"
        self._timeout = api_timeout(js)
        self._retry_timeout = max(RETRY_SECONDS, self._timeout) if retry_timeout is None else retry_timeout
        self._api = StreamApi.of(js, retry_timeout=self._retry_timeout)
        self._writer = ObjectWriter(js, bucket, self._api, self._retry_timeout)

    # --- Storing ------------------------------------------------------------------------------------------------------

    async def check_in(self, event: EventLike) -> EventLike:
        """
        Store the data of an event if it is large, and return the event without data and with ``dataref``.

        Other events are returned unchanged, also those that refer to data elsewhere. Publishers call this.

        Args:
            event: The event, as for :func:`ce_nats.to_nats_message`.

        Raises:
            EncodeError: As :func:`ce_nats.to_nats_message` does; ``data-too-large``: the data has more than
                ``max_size`` bytes.
            DeliveryError: ``stream-not-found``: there is no such bucket; ``no-responders``, ``timeout``;
                ``permission-denied``; ``connection-closed``; ``temporarily-unavailable``, for instance because the
                bucket is full; ``request-refused``; ``unexpected-answer``: the bucket has a link, or malformed
                metadata, under the name of the object.
        """
        attributes, value, has_data = attributes_data_and_presence(event)
        if not has_data or _is_small(value, self.over) or not self._may_replace(event):
            return event
        payload = to_nats_message(event).data
        if len(payload) <= self.over:
            return event
        if len(payload) > self.max_size:
            text = f"the data must have at most {self.max_size} bytes, got {len(payload)}"
            raise EncodeError(ErrorCode.DATA_TOO_LARGE, text, attribute="data")
        reference = ObjectReference(self.bucket, object_name(event, payload))
        await self._store(reference, payload)
        return DecodedEvent({**attributes, DATAREF: str(reference)}, has_data=False)

    def _may_replace(self, event: EventLike) -> bool:
        """Return whether the event has no ``dataref``, or one of this bucket."""
        try:
            reference = object_reference(event)
        except DecodeError:
            return False
        return reference is None or reference.bucket == self.bucket

    async def _store(self, reference: ObjectReference, payload: bytes) -> None:
        """Store an object, unless the bucket has it, complete."""
        digest = reference.sha256
        assert digest is not None
        patience = Patience(self._timeout, self._retry_timeout)
        before: int | None = None
        while True:
            try:
                sequence, stored = await self._look_up(reference)
            except DecodeError as error:  # a link
                raise self._malformed(reference) from error
            is_new = before is not None and sequence > before
            before = sequence if before is None else before
            is_equal = stored is not None and (stored.size, stored.digest) == (len(payload), digest)
            if stored is not None and is_equal and await self._is_kept(stored, is_new=is_new):
                return
            if await self._writer.write(reference.name, payload, digest, sequence):
                if stored is not None:
                    await self._writer.remove_replaced(stored.nuid)
                return
            # Another client has stored or deleted the object, probably the same one.
            if not await patience.wait():
                text = f"other clients replaced the object {preview(reference.name)} during each attempt to store it"
                raise DeliveryError(ErrorCode.TEMPORARILY_UNAVAILABLE, f"{self._target}: {text}")

    async def _is_kept(self, stored: _Object, *, is_new: bool) -> bool:
        """Return whether an object has all its chunks, and does not have to be stored again."""
        subject = chunk_subject(self.bucket, stored.nuid)
        with self._errors():
            config, count = await self._api.config_and_count(self._stream, subject)
        return count == stored.chunks > 0 and (is_new or not config.get("max_age"))

    # --- Reading ------------------------------------------------------------------------------------------------------

    async def resolve(self, event: DecodedEvent, *, parse_data: bool = True) -> DecodedEvent:
        """
        Return an event with the data that its ``dataref`` refers to, checked against its digest and its size.

        An event with data, or without ``dataref``, is returned unchanged.

        Args:
            event: A received event.
            parse_data: False returns data as bytes.

        Raises:
            DecodeError: ``unsupported-dataref``: the ``dataref`` is not an object in this bucket, or a link;
                ``data-too-large``: the data has more than ``max_size`` bytes; ``digest-mismatch``: the object is
                damaged, or not the one that the sender has stored; as :func:`ce_nats.from_nats_message` does, for data
                of a JSON type that is not JSON.
            DeliveryError: ``object-not-found``: the object was deleted; ``stream-not-found``: there is no such bucket;
                ``unexpected-answer``: the metadata of the object is malformed; ``temporarily-unavailable``: other
                clients replaced the object during each of five reads; ``no-responders``, ``timeout``;
                ``permission-denied``; ``connection-closed``.
        """
        attributes, _, has_data = attributes_data_and_presence(event)
        if has_data or attributes.get(DATAREF) is None:
            return event
        payload = await self.read(attributes[DATAREF])
        return binary.with_payload(dict(attributes), payload, parse_data)

    async def read(self, dataref: str) -> bytes:
        """
        Return the data that a ``dataref`` refers to, as bytes, checked against its digest and its size.

        Args:
            dataref: Value of the attribute.

        Raises:
            DecodeError: As :meth:`resolve` does, but the data is not decoded.
            DeliveryError: As :meth:`resolve` does.
        """
        reference = ObjectReference.parse(dataref)
        if reference.bucket != self.bucket:
            text = f"dataref must be in the bucket {self.bucket}, got {preview(dataref)}"
            raise DecodeError(ErrorCode.UNSUPPORTED_DATAREF, text, attribute=DATAREF)
        previous = None
        for _ in range(_MAX_READS):
            _, stored = await self._look_up(reference)
            if stored is None:
                text = f"{self._target} has no object {preview(reference.name)}: it was deleted, or never stored"
                raise DeliveryError(ErrorCode.OBJECT_NOT_FOUND, text)
            if reference.sha256 not in (None, stored.digest):
                raise self._mismatch(reference)
            if stored.size > self.max_size:
                text = f"the data must have at most {self.max_size} bytes, got {stored.size}"
                raise DecodeError(ErrorCode.DATA_TOO_LARGE, text, attribute=DATAREF)
            payload = await self._read_chunks(stored)
            if len(payload) == stored.size and sha256(payload).digest() == stored.digest:
                return payload
            if stored == previous:
                if len(payload) < stored.size:
                    await self._check_age(reference, stored)
                raise self._mismatch(reference)
            previous = stored  # it may have been replaced or deleted while it was read
        text = f"the object {preview(reference.name)} was replaced each time that it was read"
        raise DeliveryError(ErrorCode.TEMPORARILY_UNAVAILABLE, f"{self._target}: {text}")

    async def _check_age(self, reference: ObjectReference, stored: _Object) -> None:
        """
        Check that chunks are not missing because of the time to live, which ends for them before it does for metadata.

        Raises:
            DeliveryError: ``object-not-found``: they are.
        """
        with self._errors():
            config, count = await self._api.config_and_count(self._stream, chunk_subject(self.bucket, stored.nuid))
        if config.get("max_age") and count < stored.chunks:
            text = f"the time to live of the object {preview(reference.name)} is over"
            raise DeliveryError(ErrorCode.OBJECT_NOT_FOUND, f"{self._target}: {text}")

    async def _look_up(self, reference: ObjectReference) -> tuple[int, _Object | None]:
        """
        Look up an object.

        Returns the sequence of its metadata, 0 if it does not exist; and the object, None if it does not exist or was
        deleted.
        """
        with self._errors():
            subject = metadata_subject(self.bucket, reference.name)
            message = await self._api.stored(self._stream, {"last_by_subj": subject})
        if message is None:
            return 0, None
        try:
            found = msgspec.json.decode(message.data, type=_Metadata)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._malformed(reference) from error
        if found.deleted:
            return message.seq, None
        if found.options is not None and found.options.link is not None:
            text = f"dataref must not be a link to another object, got {preview(str(reference))}"
            raise DecodeError(ErrorCode.UNSUPPORTED_DATAREF, text, attribute=DATAREF)
        digest = _decode_digest(found.digest)
        if not _NUID.fullmatch(found.nuid) or found.size < 0 or digest is None:
            raise self._malformed(reference)
        return message.seq, _Object(message.seq, found.nuid, found.size, found.chunks, digest)

    def _mismatch(self, reference: ObjectReference) -> DecodeError:
        text = f"the object {preview(reference.name)} must have the digest and the size of its data"
        return DecodeError(ErrorCode.DIGEST_MISMATCH, f"{self._target}: {text}", attribute=DATAREF)

    def _malformed(self, reference: ObjectReference) -> DeliveryError:
        text = f"the metadata of object {preview(reference.name)} is not that of an object store"
        return DeliveryError(ErrorCode.UNEXPECTED_ANSWER, f"{self._target}: {text}")

    async def _read_chunks(self, stored: _Object) -> bytes:
        """Return the bytes of an object; fewer, or one more than its size, if it is damaged."""
        content = bytearray()
        subject = chunk_subject(self.bucket, stored.nuid)
        with self._errors():
            first = await self._api.next_sequence(self._stream, 1, [subject])
            if first is None:
                return b""
            chunks = read_range_on(
                self._nc,
                StreamRange(self._stream, first, stored.sequence, subjects=(subject,)),
                prefix=api_prefix(self._js),
                on_loss=_ignore_loss,
                request_timeout=self._timeout,
                retry_timeout=self._retry_timeout,
            )
            async with aclosing(chunks) as batches:
                async for batch in batches:
                    for _, _, chunk, _ in batch.messages:
                        content += chunk
                    if len(content) > stored.size:
                        return bytes(content[: stored.size + 1])
                    await asyncio.sleep(0)
        return bytes(content)

    @property
    def _target(self) -> str:
        return f"bucket {self.bucket}"

    def _errors(self) -> AbstractContextManager[None]:
        return bucket_errors(self.bucket, self._nc)


def _is_small(value: object, limit: int) -> bool:
    """Return whether data is small, without encoding it; False if that is not known."""
    if isinstance(value, data.BYTES):
        return memoryview(value).nbytes <= limit
    return isinstance(value, str) and 6 * len(value) + 2 <= limit  # characters of JSON have at most 6 bytes


def _decode_digest(text: str) -> bytes | None:
    """Return the SHA-256 in the metadata of an object; None if it is malformed."""
    found = _DIGEST.fullmatch(text)
    return urlsafe_b64decode(f"{found[1]}=") if found else None


def _ignore_loss(error: DataLossError) -> None:
    """Ignore chunks that were deleted: the digest shows it."""
