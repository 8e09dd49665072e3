"""What a job must not leave behind."""

from __future__ import annotations

import re
from pathlib import Path

from entry_point.job.run_folder import RunFolder
from entry_point.job.run_lock import holding

_CHECKPOINT = re.compile(r"(step-\d{9}|best)\.pt|metrics\.jsonl")
_EVENTS = re.compile(r"events\.out\.tfevents\..*")


def require_free(run: Path) -> None:
    """No process holds the lock; the kernel may take a moment to release a dead one's."""
    if RunFolder(run).lock.exists():
        with holding(RunFolder(run)):
            pass


def names(run: Path) -> set[str]:
    """The files that a job makes; checkpoints and event files have names that differ."""
    found = [path for part in ("model", "output") for path in (run / part).rglob("*")]
    found = [path for path in found if path != RunFolder(run).config]  # not by hand
    return {_EVENTS.sub("events", str(path.relative_to(run))) for path in found}


def require_only_checkpoints(folder: Path) -> None:
    wrong = [path.name for path in folder.iterdir() if not _CHECKPOINT.fullmatch(path.name)]
    assert not wrong, f"in {folder}: {wrong}"
