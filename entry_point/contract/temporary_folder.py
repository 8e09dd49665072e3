"""A temporary folder that does not outlive its process, even if that process is killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "managed-training-"
_LOCK = "lock"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder below the system's temporary folder, and remove it at the end.

    First remove those of killed processes: the kernel has released the lock in them.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        _remove_if_abandoned(left)
    folder = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
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
