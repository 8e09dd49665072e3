"""The processes of a job, found by a variable that all of them inherit, and their roles."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

VARIABLE = "CHAOS_JOB"

# What a command line contains, and what the process is; the first that fits.
_ROLES = (
    ("multiprocessing.resource_tracker", "tracker"),
    ("multiprocessing.spawn", "loader"),
    ("launch.local", "launcher"),
    ("entry_point train", "supervisor"),
    ("entry_point.train", "rank"),
    ("entry_point optimize", "packing"),
    ("entry_point predict", "predict"),
)


def mark() -> dict[str, str]:
    """A new job's mark, for its environment."""
    return {VARIABLE: uuid4().hex}


def find(mark: dict[str, str]) -> dict[int, str]:
    """The living processes of a job by process id, each with its role."""
    wanted = f"{VARIABLE}={mark[VARIABLE]}".encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = _role(folder)
        except OSError:  # it has ended
            continue
    return {pid: role for pid, role in found.items() if role}


def _role(folder: Path) -> str:
    """Empty for a process that has ended and waits for its parent."""
    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    for text, role in _ROLES:
        if text in command:
            forked = role == "rank" and _is_rank(_parent(folder))
            return "loader" if forked else role
    return "compiler" if command else ""


def _is_rank(folder: Path) -> bool:
    command = (folder / "cmdline").read_bytes().split(b"\0")
    return b"entry_point.train" in command


def _parent(folder: Path) -> Path:
    status = (folder / "stat").read_text().rpartition(")")[2].split()
    return folder.parent / status[1]


def handles(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal, or ignores it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    masks = int(lines["SigCgt"], 16) | int(lines["SigIgn"], 16)
    return bool(masks >> (number - 1) & 1)


def kill(pid: int, number: int) -> bool:
    """Send a signal; False if the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
