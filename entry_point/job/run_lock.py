"""One job per run folder."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from entry_point.job.run_folder import ContractError, RunFolder
from entry_point.job.whole_file import UNSUPPORTED

_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_PATIENCE_S = 2.0
"""How long to wait for the lock: the kernel may take a moment to free that of a killed job."""


@contextmanager
def holding(run: RunFolder) -> Iterator[None]:
    """Keep other jobs out of the run folder.

    On a file system without locks, log one line that other jobs are not kept out.

    Raises ContractError if another process holds the lock, or if this user cannot write there.
    """
    lock = FileLock(run.lock, timeout=_PATIENCE_S, fallback_to_soft=False)
    try:
        run.output.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise ContractError(
            f"another process is training in {run.root}; wait for it, stop it, or use another name"
        ) from error
    except OSError as error:
        if error.errno in _FORBIDDEN and error.filename is not None:
            raise ContractError(
                f"{error.filename}: cannot be written by user {os.getuid()} ({error.strerror}); "
                f"run as the owner of {run.root}, mount it writable, or name another run folder "
                "with ML_ROOT"
            ) from error
        if error.errno not in UNSUPPORTED:
            raise
        sys.stderr.write(
            f"train: {run.root} is on a file system without file locks ({error.strerror}): do not "
            "start a second job in this folder\n"
        )
    try:
        yield
    finally:
        lock.release()
