"""Reads Parquet files that may be damaged, and writes them to disks that may be full."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from arro3.core import RecordBatch, RecordBatchReader, Schema
from arro3.io import read_parquet, write_parquet

from entry_point.data.errors import DataError


def parquet_batches(
    file: Path, rows: int, check: Callable[[Schema], None], remedy: str
) -> Iterator[RecordBatch]:
    """The file's rows, about `rows` at a time, after `check`, which may raise TypeError.

    Raises DataError, which ends with `remedy`, for a file that is damaged.
    """
    try:
        with _panic_hidden():
            reader = read_parquet(file, batch_size=rows)
        check(reader.schema)
        while True:
            with _panic_hidden():
                batch = next(reader, None)
            if batch is None:
                return
            yield batch
    except (OSError, MemoryError, DataError):
        raise
    except BaseException as error:  # a panic in Rust is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())
        raise DataError(f"{file} is damaged ({reason}): {remedy}") from error


@contextmanager
def _panic_hidden() -> Iterator[None]:
    """Hide what Rust prints of a panic, with a stack, before Python gets it as an exception."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def write_batches(file: BinaryIO, schema: Schema, batches: Iterable[RecordBatch]) -> None:
    """Write rows to an open file, batch by batch. Raises OSError."""
    sink = _Sink(file)
    write_parquet(RecordBatchReader.from_batches(schema, batches), cast(BinaryIO, sink))
    if sink.error is not None:
        raise sink.error


class _Sink:
    """Keeps the error of a failed write (full disk): an exception in `write` ends the process."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def flush(self) -> None:
        """`whole_file` flushes."""
