"""
Encode batches of rows as publish frames, in workers.

Columns are encoded as a whole. Rows that this does not cover are encoded one by one by the codec, which raises the
errors.

Messages that are not events get a ``Nats-Msg-Id`` too, so that a retried task does not store them again: of the write,
the task, the number of the row, and a digest. If the rows arrive in another order in a retry, the digest makes other
ids: a row is then stored again, and never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...aio.core._publish import check_sizes
from ...aio.publishing._prepare import MAX_HEADER_BYTES
from ...arrow._copies import copied_headers
from ...arrow._decode import _indexes
from ...arrow._encode import Encoded, encode
from ...arrow._frames import frames, pieces
from ...arrow._header_lines import encode_headers, with_ids
from ...arrow._headers import octets
from ...codec.binding import dedup_id, from_nats_message, to_nats_message
from ...codec.event import DecodedEvent
from ...codec.mode import PREFIX, ContentMode
from ...codec.percent import is_encoded
from ...codec.subject_template import SubjectTemplate
from ...errors import DecodeError, EncodeError, ErrorCode, preview
from ...message import MSG_ID, Headers, NatsMessage, check_header
from ...subjects import check_plain_subject, check_subject_from_message
from ...wire._frames import Frames
from ..columns._rows import event_of, event_rows
from ._row_columns import RowColumns

# Lines of a header block with a Nats-Msg-Id.
_HAS_ID: Final = f"(?m)^{MSG_ID}: "
_DIGEST_BYTES: Final = 8
_INSTEAD: Final = "write a column event, which is encoded, or an array of headers, which is sent unchanged"


class RowEncoder:
    """
    Encoder of rows.

    ``reject``: Called with a row, as a batch of one, and the reason why it cannot be encoded; None raises the reason.

    Attributes:
        stripped: Number of messages so far without such headers that the rows have.
        markers: Number of rows so far that are not sent, because a server has written the message.
    """

    def __init__(
        self,
        columns: RowColumns,
        subject: str | SubjectTemplate,
        content_mode: ContentMode,
        *,
        dedup: bool,
        row_ids: str = "",
        reject: Callable[[pa.RecordBatch, EncodeError], None] | None = None,
        keep_instructions: bool = False,
    ) -> None:
        self.stripped = self.markers = 0
        self._next = 0
        self._row_ids = row_ids
        self._reject = reject
        self._keeps_instructions = keep_instructions
        indexes = {name: index for name, index in asdict(columns).items() if index is not None}
        self._used = list(indexes.values())
        self._columns = RowColumns(**{**asdict(columns), **{name: place for place, name in enumerate(indexes)}})
        self._subject = subject
        self._mode = content_mode
        self._dedup = dedup

    def frames(
        self, batches: Iterable[pa.RecordBatch], reply_prefix: str, max_payload: int | None = None
    ) -> Iterator[Frames]:
        """
        Yield the frames of batches, numbered from 0 on.

        Raises:
            EncodeError: ``payload-too-large``, ``headers-too-large``, ``invalid-subject``, ``forbidden-subject``,
                ``invalid-header-name`` or ``invalid-header-value``; for events, the errors of ``to_nats_message``.
        """
        for batch in batches:
            for piece in pieces(batch):
                yield from self._frames(*self._copied(piece), reply_prefix, max_payload)

    def _frames(
        self, rows: pa.RecordBatch, batch: pa.RecordBatch, reply_prefix: str, max_payload: int | None
    ) -> Iterator[Frames]:
        """Yield the frames of a batch, in pieces without the rows that are rejected."""
        if not batch.num_rows:
            return
        try:
            made = frames(*self._with_ids(*self.messages(batch)), self._next, reply_prefix)
            if max_payload is not None:
                check_sizes(*made.largest, max_payload, MAX_HEADER_BYTES)
        except EncodeError as error:
            if self._reject is None:
                raise
            if batch.num_rows == 1:
                self._reject(rows, error)
                return
            half = batch.num_rows // 2
            for start, count in (0, half), (half, batch.num_rows - half):
                yield from self._frames(rows.slice(start, count), batch.slice(start, count), reply_prefix, max_payload)
            return
        self._next = made.end
        yield made

    def _copied(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows that are sent, and of them the used columns, with the headers that are sent."""
        batch = rows.select(self._used)
        index = self._columns.headers
        if index is None:
            return rows, batch
        headers, stripped, markers = copied_headers(batch.column(index), keep_instructions=self._keeps_instructions)
        self.stripped += stripped
        if stripped or markers is not None:
            columns = [*batch.columns[:index], headers, *batch.columns[index + 1 :]]
            batch = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        if markers is not None:
            self.markers += pc.sum(markers).as_py()
            are_sent = pc.invert(markers)
            rows, batch = rows.filter(are_sent), batch.filter(are_sent)
        return rows, batch

    def _with_ids(self, subjects: pa.Array, lines: pa.Array, payloads: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Add a ``Nats-Msg-Id`` to the lines of messages without one."""
        if self._dedup and self._columns.event is None:
            rows = _indexes(pc.invert(pc.match_substring_regex(lines, _HAS_ID)))
            if rows:
                ids: list[str | None] = [None] * len(lines)
                some = pa.array(rows, pa.int64())
                for row, *message in zip(
                    rows, *(column.take(some).to_pylist() for column in (subjects, lines, payloads))
                ):
                    ids[row] = self._row_id(self._next + row, *message)
                lines = with_ids(lines, pa.array(ids, pa.string()))
        return subjects, lines, payloads

    def _row_id(self, number: int, subject: str, lines: str, payload: bytes) -> str:
        digest = blake2b(f"{subject}\0{lines}\0".encode() + payload, digest_size=_DIGEST_BYTES).hexdigest()
        return f"{self._row_ids}-{number}-{digest}"

    def messages(self, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return subjects, lines of header blocks, and payloads of a batch that has only the used columns."""
        given = self._given_subjects(batch)
        encoded = self._encoded(batch)
        lines, payloads = encoded.lines, encoded.payloads
        if encoded.odd:
            rows = sorted(encoded.odd)
            odd = self._encode_singly(batch.take(pa.array(rows, pa.int64())))
            is_odd = pc.is_in(pa.array(range(batch.num_rows), pa.int64()), pa.array(rows, pa.int64()))
            lines = pc.replace_with_mask(lines, is_odd, pa.array([_lines(message) for message in odd], pa.string()))
            some = pa.array([message.data for message in odd], pa.binary())
            payloads = pc.replace_with_mask(payloads, is_odd, some)
        return self._subjects(batch, given), lines, payloads

    def _encoded(self, batch: pa.RecordBatch) -> Encoded:
        if self._columns.event is not None:
            return encode(batch.column(self._columns.event), self._mode, dedup=self._dedup)
        headers, data = (_column(batch, index) for index in (self._columns.headers, self._columns.data))
        return encode_headers(headers, data, batch.num_rows, dedup=self._dedup)

    # --- Subjects -----------------------------------------------------------------------------------------------------

    def _given_subjects(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the subjects of the column and of the option, checked; NULL for those of a template."""
        column = _column(batch, self._columns.subject)
        given = pa.nulls(batch.num_rows, pa.string()) if column is None else _strings(column)
        is_given = pc.greater(pc.binary_length(given), 0).fill_null(False)
        other = self._subject if isinstance(self._subject, str) else None
        subjects = pc.if_else(is_given, given, pa.scalar(other, pa.string()))
        for subject in subjects.unique().to_pylist():
            if subject is not None:
                self._check(subject)
        return subjects

    def _check(self, subject: str) -> None:
        # Often the column of captured messages, so the subject is chosen by their senders.
        check_subject_from_message(subject, allowed=[subject])
        if self._columns.event is not None:
            check_plain_subject(subject)

    def _subjects(self, batch: pa.RecordBatch, given: pa.Array) -> pa.Array:
        """Return the subjects of valid events, with those of the template."""
        if not given.null_count or not isinstance(self._subject, SubjectTemplate):
            return given
        assert self._columns.event is not None
        is_missing = given.is_null()
        known: dict[Any, str] = {}
        texts = []
        for key, attributes in self._template_values(batch.column(self._columns.event).filter(is_missing)):
            if key not in known:
                known[key] = self._subject.format(DecodedEvent(attributes))
            texts.append(known[key])
        return pc.replace_with_mask(given, is_missing, pa.array(texts, pa.string()))

    def _template_values(self, events: pa.StructArray) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield attributes of the template, and a key for them."""
        assert isinstance(self._subject, SubjectTemplate)
        names = self._subject.names
        attributes = dict(zip((field.name for field in events.type), events.flatten()))["attributes"]
        fields = {field.name: column for field, column in zip(attributes.type, attributes.flatten())}
        columns = [fields[name] for name in names if name in fields and pa.types.is_string(fields[name].type)]
        if len(columns) < len(names) or "time" in names:
            for number, row in enumerate(event_rows(events)):
                yield number, event_of(row).get_attributes()
            return
        for values in zip(*(column.to_pylist() for column in columns)):
            yield values, {name: value for name, value in zip(names, values) if value is not None}

    # --- Rows that are encoded one by one -----------------------------------------------------------------------------

    def _encode_singly(self, batch: pa.RecordBatch) -> list[NatsMessage]:
        if self._columns.event is not None:
            return [self._event_message(row) for row in event_rows(batch.column(self._columns.event))]
        headers, data = (_column(batch, index) for index in (self._columns.headers, self._columns.data))
        none = [None] * batch.num_rows
        payloads = none if data is None else octets(data).to_pylist()
        pairs = none if headers is None else [_pairs(row) for row in headers]
        is_map = headers is not None and pa.types.is_map(headers.type)
        return [self._message(row, payload or b"", is_map=is_map) for row, payload in zip(pairs, payloads)]

    def _event_message(self, row: Any) -> NatsMessage:
        event = event_of(row)
        message = to_nats_message(event, mode=self._mode)
        if self._dedup:
            message.headers.append(MSG_ID, dedup_id(event))
        return message

    def _message(self, pairs: Sequence[tuple[Any, Any]] | None, data: bytes, *, is_map: bool) -> NatsMessage:
        headers = Headers([(_text("name", name), _text("value", value)) for name, value in pairs or ()])
        message = NatsMessage("", data, headers)
        for name, value in message.headers.items():
            check_header(name, value)
        if is_map:
            _check_event(message)
        if self._dedup and MSG_ID not in message.headers and (msg_id := _dedup_id(message)):
            message.headers.append(MSG_ID, msg_id)
        return message


def _column(batch: pa.RecordBatch, index: int | None) -> pa.Array | None:
    return None if index is None else batch.column(index)


def _strings(column: pa.Array) -> pa.Array:
    """
    Return subjects as strings.

    Raises:
        EncodeError: ``invalid-subject``: one is not UTF-8.
    """
    raw = octets(column)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid as error:
        for value in raw.to_pylist():
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                text = f"a subject must be UTF-8, got {preview(value)}"
                raise EncodeError(ErrorCode.INVALID_SUBJECT, text) from error
        raise


def _lines(message: NatsMessage) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in message.headers.items())


def _pairs(row: pa.Scalar) -> list[tuple[bytes | None, bytes | None]] | None:
    """Return the headers of a row, as bytes, because Spark's strings may contain any; None for NULL."""
    entries = row.values
    if entries is None:
        return None
    names, values = (octets(column).to_pylist() for column in entries.flatten())
    return list(zip(names, values))


def _text(what: str, given: bytes | None) -> str:
    """
    Return the name or the value of a header.

    Raises:
        EncodeError: ``invalid-header-name``, ``invalid-header-value``.
    """
    if given is not None:
        with suppress(UnicodeDecodeError):
            return given.decode()
    code = ErrorCode.INVALID_HEADER_NAME if what == "name" else ErrorCode.INVALID_HEADER_VALUE
    found = "NULL" if given is None else preview(given)
    raise EncodeError(code, f"the {what} of a header must be a string or UTF-8 in a BINARY, got {found}")


def _check_event(message: NatsMessage) -> None:
    """
    Check that a message with ``ce-`` headers is an event, encoded as the NATS binding requires.

    Raises:
        EncodeError: It is not, with the code of the error of decoding, or ``invalid-header-value``.
    """
    attributes = [(name, value) for name, value in message.headers.items() if name.lower().startswith(PREFIX)]
    if not attributes:
        return
    for name, value in attributes:
        if not is_encoded(value):
            text = f"header {name} in a map must be percent-encoded, got {preview(value)}; {_INSTEAD}"
            raise EncodeError(ErrorCode.INVALID_HEADER_VALUE, text, header=name)
    try:
        from_nats_message(message, parse_data=False)
    except DecodeError as error:
        text = f"a map with {PREFIX} headers must be that of an event: {error.message}; {_INSTEAD}"
        raise EncodeError(error.code, text, header=error.header, requirement=error.requirement) from error


def _dedup_id(message: NatsMessage) -> str | None:
    """Return the deduplication id of the event in a message, or None if the message is not an event."""
    try:
        return dedup_id(from_nats_message(message, parse_data=False))
    except DecodeError:
        return None
