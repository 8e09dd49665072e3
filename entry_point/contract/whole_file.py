"""Files that are complete or absent under their name, and temporary folders that end with their
process, even after a kill, a crash or power loss."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_PARTIAL = re.compile(r"\..+(\.[^.]+)\.\d+\1")
"""The default temporary name of a file with a suffix."""
FOLDER_PREFIX = "managed-training-"
_LOCK = "lock"


@contextmanager
def replacing(
    path: Path, temporary: Path | None = None, needed: int | None = None
) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success, sync it to disk and rename it to `path`.

    The default temporary name starts with a dot and contains the process id, so two writers never
    collide, and a platform that mirrors the folder never sees a partial file under its final name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if temporary is None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    with naming(path, temporary, needed):
        try:
            yield temporary
            _sync(temporary)
            temporary.replace(path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def remove_partial_files(folder: Path) -> None:
    """Remove the temporary files of `replacing` below `folder`, where no process may be writing."""
    for path in folder.rglob(".*"):
        if _PARTIAL.fullmatch(path.name):
            path.unlink()


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that is renamed to `path` once all of it is on disk.

    Every process uses the same temporary name, so the next attempt overwrites what a killed process
    left behind. Two processes must not write the same `path` at once.
    """
    part = path.with_name(f"{path.name}.part")
    with replacing(path, part) as temporary, temporary.open("wb") as file:
        yield file


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8."""
    content = text.encode()
    with replacing(path, needed=len(content)) as temporary:
        temporary.write_bytes(content)


def link_or_copy(source: Path, target: Path) -> None:
    """Make a hard link; a copy where there are none: FAT, some network file systems."""
    try:
        target.hardlink_to(source)
    except FileExistsError:
        raise
    except OSError:
        shutil.copyfile(source, target)


@contextmanager
def naming(path: Path, temporary: Path | None = None, needed: int | None = None) -> Iterator[None]:
    """Name `path` in an OSError that names no file, as those of write(), or only `temporary`.

    If the disk is full, the error also says how many bytes are `needed`.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        reason = error.strerror
        if needed is not None and error.errno in NO_SPACE:
            reason = f"no space left in {path.parent}, {needed // 10**6 + 1} MB needed"
        raise OSError(error.errno, reason, str(path)) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- temporary folders


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder below the system's temporary folder, and remove it at the end.

    First remove those of killed processes: the kernel has released the lock in them.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        _remove_if_abandoned(left)
    folder = Path(tempfile.mkdtemp(prefix=f".{FOLDER_PREFIX}"))
    try:
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Other processes look for this name, so the lock comes first.
            folder = folder.rename(folder.with_name(folder.name[1:]))
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_if_abandoned(folder: Path) -> None:
    """Remove the folder unless it is another user's, or a process holds the lock in it."""
    try:
        if folder.lstat().st_uid == os.getuid():
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
    except OSError:
        pass  # it is in use, was never a job's, or another process is removing it
