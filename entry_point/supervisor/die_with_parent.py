"""Ties a process's life to its parent's, so that nothing outlives a job that was killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have Linux kill this process when its parent, process id `parent`, dies.

    It has no effect on other systems, or on a process that a fork server started for `parent`.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    died_before = os.getppid() != parent and not Path(f"/proc/{parent}").exists()
    if died_before:
        os.kill(os.getpid(), signal.SIGKILL)
