"""Two processes must not train in one run folder: they would overwrite each other's files."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from entry_point.run_folder import RunFolderError


@contextmanager
def run_lock(root: Path, first_rank: bool) -> Iterator[None]:
    """The first rank holds the run folder; the system lets go of it however that process ends.

    The lock lies in the system's temporary folder, since a platform mirrors the run folder.

    Raises:
        RunFolderError: another process on this machine trains there.
    """
    if not first_rank:
        yield
        return
    name = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]
    lock = FileLock(Path(tempfile.gettempdir()) / f"train-{os.getuid()}-{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RunFolderError(
            f"another process is training in {root}; wait for it, stop it, or use another name"
        ) from error
    try:
        yield
    finally:
        lock.release()
