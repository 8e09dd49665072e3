"""Ties a process's life to its parent's, so that nothing outlives a job that was killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have Linux kill this process when its parent, process id `parent`, dies, or has died before.

    It has no effect on other systems, or on a process that a fork server started for `parent`.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent and not _is_running(parent):
        os.kill(os.getpid(), signal.SIGKILL)


def _is_running(process: int) -> bool:
    """False for a zombie, too: it has no command line any more."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes() != b""
    except OSError:
        return False
