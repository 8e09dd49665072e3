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
    with _damage_named(file, remedy):
        with _panic_hidden():
            reader = read_parquet(file, batch_size=rows)
        check(reader.schema)
        while True:
            with _panic_hidden():
                batch = next(reader, None)
            if batch is None:
                return
            yield batch


def read_metadata(file: Path, remedy: str) -> dict[str, str]:
    """The metadata that `write_batches` wrote with the schema. Raises DataError, see above."""
    with _damage_named(file, remedy), _panic_hidden():
        metadata = read_parquet(file).schema.metadata
        return {key.decode(): value.decode() for key, value in metadata.items()}


@contextmanager
def _damage_named(file: Path, remedy: str) -> Iterator[None]:
    """Raise DataError, which ends with `remedy`, for what the reader raises for damaged files."""
    try:
        yield
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


def write_batches(
    file: BinaryIO,
    schema: Schema,
    batches: Iterable[RecordBatch],
    *,
    row_group: int | None = None,
    compression: str | None = None,
) -> None:
    """Write rows to an open file, batch by batch; memory holds one row group.

    Raises OSError, and what `batches` raises.
    """
    sink = _Sink(file)
    reader = RecordBatchReader.from_batches(schema, sink.until_error(batches))
    write_parquet(
        reader, cast(BinaryIO, sink), max_row_group_size=row_group, compression=compression
    )
    if sink.error is not None:
        raise sink.error


class _Sink:
    """Keeps the first error, of a write (full disk) or of the batches, and ends the batches.

    An exception in `write` would end the process, and one of the batches would lose its type.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: BaseException | None = None

    def until_error(self, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        try:
            for batch in batches:
                if self.error is not None:
                    return
                yield batch
        except BaseException as error:  # also the exit that a signal's handler asks for
            self.error = self.error or error

    def write(self, data: bytes) -> int:
        try:
            self._file.write(data)
        except BaseException as error:
            self.error = self.error or error
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def flush(self) -> None:
        """`whole_file` flushes."""
