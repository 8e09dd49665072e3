"""Reads Parquet files that may be damaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from arro3.core import RecordBatch, Schema
from arro3.io import read_parquet

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
