"""CPU time and memory of this process and its descendants, from Linux's /proc; elsewhere nan."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from pathlib import Path

_PROC = Path("/proc")
_AVAILABLE = (_PROC / "self" / "smaps_rollup").exists()
_KEPT = ("Pss_Anon:", "Pss_Shmem:")


def cpu_seconds(root: int | None = None) -> float:
    """User and system time of `root`, or this process, its running descendants, and of their
    children that have ended.
    """
    if not _AVAILABLE:
        return math.nan
    ticks = sum(sum(map(int, _stat(pid)[11:15])) for pid in _tree(root))
    return ticks / os.sysconf("SC_CLK_TCK")


def private_megabytes() -> float:
    """Memory of this process and its descendants that the kernel cannot drop; shared memory counts
    once.

    This is the proportional set size without mapped files, which the page cache holds anyway.
    """
    if not _AVAILABLE:
        return math.nan
    kilobytes = 0
    for pid in _tree():
        try:
            lines = (_PROC / pid / "smaps_rollup").read_text().splitlines()
        except OSError:  # the process has just ended
            continue
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith(_KEPT))
    return kilobytes * 1024 / 1e6


def _tree(root: int | None = None) -> list[str]:
    children = defaultdict(list)
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (stat := _stat(entry.name)):
            children[stat[1]].append(entry.name)
    tree = [str(root or os.getpid())]
    for pid in tree:
        tree += children[pid]
    return tree


def _stat(pid: str) -> list[str]:
    """Fields of /proc/PID/stat, starting at the state; empty if the process has ended."""
    try:
        return (_PROC / pid / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
