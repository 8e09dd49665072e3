"""The commit of this clone, and the state of a tree that has changed since."""

import re
import subprocess
from pathlib import Path

from entry_point.job.own_code import content_hash

ROOT = Path(__file__).resolve().parents[1]
# The files and folders that decide what is in the image.
CONTEXT = (
    *("Dockerfile", "launch/image_packages.py", "requirements"),
    *("configs", "custom_op", "entry_point", "project"),
)


def git(*arguments: str) -> str:
    """Stdout of a git command in the repository; empty without a repository or without git."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """Returns the current commit, with ``-dirty`` if files have changed, or ``untracked`` without
    git."""
    head = git("rev-parse", "--short=12", "HEAD")
    if not head:
        return "untracked"
    return f"{head}-dirty" if git("status", "--porcelain") else head


def revision() -> str:
    """Returns the commit; if files have changed, also a hash of the files that enter the image."""
    name = commit()
    return name if is_committed(name) else f"{name}-{files_hash(*CONTEXT)[:8]}"


def files_hash(*tops: str) -> str:
    """16 hexadecimal digits for the files below these of the repository, whatever git says."""
    paths = [path for top in tops for path in (ROOT / top, *(ROOT / top).rglob("*"))]
    files = [path for path in paths if path.is_file() and path.suffix != ".pyc"]
    return content_hash({path.relative_to(ROOT).as_posix(): path.read_bytes() for path in files})


def is_committed(name: str) -> bool:
    """Returns whether the name of a commit stands for the tree exactly."""
    return bool(re.fullmatch("[0-9a-f]+", name))
