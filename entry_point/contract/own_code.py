"""Code that was sent with the job: `project/` and `configs/` in a channel, instead of the image's.

The launcher fills the channel and sets the variable `OWN_CODE` to the content's hash. The entry
point then puts the channel first on the import path of every process of the job.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

CHANNEL = "code"
FOLDERS = ("project", "configs")
HASH = "OWN_CODE"
"""The environment variable with the hash; not set in a job that runs the image's own code."""
CONFIGS = "JOB_CONFIGS"
"""The environment variable that names the folder of the config tree."""
PROGRAM = Path(__file__).resolve().parents[2]
"""The folder of the packages `entry_point` and `custom_op`."""


def content_hash(files: Mapping[str, bytes]) -> str:
    """16 hexadecimal digits for the contents of files by their name."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def put_first(channels: Path) -> None:
    """Let this process and all that it starts use the channel's code, if the job has such."""
    if not os.environ.get(HASH):
        return
    folder = channels / CHANNEL
    sys.path.insert(0, str(folder))
    rest = os.environ.get("PYTHONPATH")
    path = [str(folder), str(PROGRAM), *([rest] if rest else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    # Else `python -m` puts the working directory first, which in the image has a `project/`, too.
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ[CONFIGS] = str(folder / "configs")


def problem(channels: Path) -> str | None:
    """What is wrong with the code that was sent with this job; None if nothing is."""
    sent, folder = os.environ.get(HASH), channels / CHANNEL
    if not sent:
        return None
    if not folder.is_dir():
        return f"{HASH}={sent}: the job has no channel {CHANNEL}, must have the folder {folder}"
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    found = content_hash({name: p.read_bytes() for name, p in files.items() if p.is_file()})
    if found != sent:
        return f"{folder}: must hold the code with the hash {sent} that was sent, has {found}"
    return None
