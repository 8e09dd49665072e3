"""The commit that a job is launched from, for its tag."""

import functools
import subprocess
from pathlib import Path


@functools.cache
def commit() -> str:
    """The current commit, with `-dirty` if tracked files have changed; `untracked` without git."""
    describe = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty"]
    try:
        done = subprocess.run(
            describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "untracked"
    return done.stdout.strip() or "untracked"
