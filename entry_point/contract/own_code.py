"""Code that was sent with the job: `project/` and `configs/` in a channel, instead of the image's.

Uses the standard library only, because `make docker-train` runs before anything is installed.

The launcher fills the channel and sets the variable `OWN_CODE` to the content's hash. The entry
point then puts the channel first on the import path of every process of the job.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from entry_point.contract.platform_files import ContractError

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


def require_sent(channels: Path) -> None:
    """Raise ContractError unless the channel has what was sent with this job, if anything was."""
    sent, folder = os.environ.get(HASH), channels / CHANNEL
    if not sent:
        return
    if not folder.is_dir():
        must = f"the job has no channel {CHANNEL}, must have the folder {folder}"
        raise ContractError(f"{HASH}={sent}: {must}")
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    found = content_hash({name: p.read_bytes() for name, p in files.items() if p.is_file()})
    if found != sent:
        must = f"must hold the code with the hash {sent} that was sent, has {found}"
        raise ContractError(f"{folder}: {must}")
