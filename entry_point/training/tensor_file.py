"""Writes and reads torch's files, with errors that say whether the disk, the memory or the file is
at fault."""

from __future__ import annotations

import errno
import zipfile
from pathlib import Path
from typing import Any

import torch

from entry_point.contract.whole_file import replacing


class DamagedFileError(ValueError):
    """The file is not what torch.save wrote."""


def save_tensors(value: Any, path: Path) -> None:
    """Write `path` with torch.save, whole or not at all. Raises OSError, which names `path`."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(value, file)
        except RuntimeError as error:
            # torch.save replaces the error of a failed write with one that gives no reason.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def load_tensors(path: Path, *, verify: bool = False) -> Any:
    """Read a file with torch.load, without executing anything in it.

    `verify` also compares the checksums that torch.save wrote, which torch.load does not.

    Raises:
        DamagedFileError: the file is cut short, changed or another kind of file.
        OSError: it cannot be read, or does not fit into memory; it may still be whole.
    """
    try:
        if verify:
            _verify_checksums(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            needed = f"not enough memory to load it, {path.stat().st_size // 10**6 + 1} MB needed"
            raise OSError(errno.ENOMEM, needed, str(path)) from error
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise OSError(error.errno, error.strerror, str(path)) from error
        # What follows in torch's texts is advice for developers.
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise DamagedFileError(reason or type(error).__name__) from error


def _verify_checksums(path: Path) -> None:
    """Raise an error of zipfile, or an OSError (EINVAL) for an offset outside the file."""
    with zipfile.ZipFile(path) as archive:
        if (broken := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"checksum of {broken} does not match")
