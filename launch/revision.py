"""The commit of this clone."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNTRACKED = "untracked"


def commit() -> str:
    """Returns 12 digits of the current commit, with ``-dirty`` if files differ from it.

    ``untracked`` without a repository or without git.
    """
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return UNTRACKED
    # New files are changes, too: those in `project` enter the image.
    return f"{head}-dirty" if _git("status", "--porcelain") else head


def is_committed(name: str) -> bool:
    """Returns whether `name`, a result of `commit`, identifies the tree."""
    return name != UNTRACKED and not name.endswith("-dirty")


def _git(*arguments: str) -> str:
    """Returns the output of a git command in the repository; empty if it fails."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return "" if done.returncode else done.stdout.strip()
