"""
Parquet files of rows that cannot be encoded, one for each task that has such rows.

The columns are ``error`` (the code), ``message`` and ``row``, a struct of all columns of the row. A file has the same
name when its task is repeated, so that Spark's retries do not add rows, and it appears when the task succeeds.
"""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from ...errors import EncodeError, preview

_ROWS = 1_000


def check_folder(given: str) -> str:
    """
    Return the absolute path, or the URI, of a folder.

    Raises:
        ValueError: pyarrow has no such file system, or the URI has a password.
    """
    uri = given if ":/" in given else os.path.abspath(given)
    try:
        if urlsplit(uri).password is not None:
            raise ValueError("option badRowsPath must have no password, which would appear in logs")
        fs.FileSystem.from_uri(uri)
    except pa.ArrowInvalid as error:
        text = (
            "option badRowsPath must be a path, or the URI of a file system that pyarrow supports, such as s3://bucket"
        )
        raise ValueError(f"{text}, got {preview(given)}: {error}") from error
    except OSError:
        pass  # the workers may reach it
    return uri


class BadRows:
    """
    The rows of a task, as a context manager: leaving the block without an exception makes the file visible.

    Attributes:
        count: Number of rows.
        first: Error of the first row, or ``""``.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._uri = folder
        self._name = name
        self._rows: list[pa.RecordBatch] = []
        self._writer: pq.ParquetWriter | None = None
        self.count = 0
        self.first = ""

    def __enter__(self) -> BadRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and self._rows:
            self._write()
        if self._writer is None:
            return
        self._writer.close()
        if kind is None:
            self._files.move(self._temporary, f"{self._folder}/{self._name}.parquet")
        else:
            with suppress(OSError):
                self._files.delete_file(self._temporary)

    def add(self, row: pa.RecordBatch, error: EncodeError) -> None:
        """Add a row, a batch of one, and its error."""
        reason = {"error": [str(error.code)], "message": [str(error)]}
        self._rows.append(pa.record_batch({**reason, "row": row.to_struct_array()}))
        self.count += 1
        self.first = self.first or str(error)
        if len(self._rows) == _ROWS:
            self._write()

    def _write(self) -> None:
        table = pa.Table.from_batches(self._rows)
        if self._writer is None:
            self._files, self._folder = fs.FileSystem.from_uri(self._uri)
            self._files.create_dir(self._folder)
            # Spark does not read files whose names begin with an underscore.
            self._temporary = f"{self._folder}/_{uuid4().hex}"
            self._writer = pq.ParquetWriter(self._temporary, table.schema, filesystem=self._files)
        self._writer.write_table(table)
        self._rows = []
