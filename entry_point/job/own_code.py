"""Code that was sent with the job: `project/` and `configs/` in a channel, instead of the image's.

Uses the standard library only, because `make docker-train` runs before anything is installed.

The launcher fills the channel and sets the variable `OWN_CODE` to the hash of its content. The
entry point compares the two before it imports any program. In every process of the job, the channel
is then last on Python's path, except that its `project` comes before the image's.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from entry_point.job.run_folder import ContractError

CHANNEL = "code"
PACKAGE = "project"
FOLDERS = (PACKAGE, "configs")
HASH = "OWN_CODE"
"""Environment variable: the hash; not set in a job that runs the image's code."""
FOLDER = "OWN_CODE_FOLDER"
"""Environment variable: the channel's folder, set once its hash is checked."""
PROGRAM = Path(__file__).resolve().parents[2]
"""The folder of the packages `entry_point` and `custom_op`."""


def content_hash(files: Mapping[str, bytes]) -> str:
    """Returns a hash of files, their contents by name, as 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode(errors="surrogateescape") + content)
    return digest.hexdigest()[:16]


def use_sent(channels: Path) -> None:
    """Let this process, and all that it starts, use the channel's code, if the job has a channel.

    Raises ContractError unless the channel holds exactly the code that was sent.
    """
    if not os.environ.get(HASH):
        return
    sent, folder = os.environ[HASH], channels / CHANNEL
    if not folder.is_dir():
        message = f"the job has no channel {CHANNEL}, must have the folder {folder}"
        raise ContractError(f"{HASH}={sent}: {message}")
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = content_hash({path.relative_to(folder).as_posix(): path.read_bytes() for path in files})
    if found != sent:
        message = f"must hold the code with the hash {sent} that was sent, has {found}"
        raise ContractError(f"{folder}: {message}")
    # Bytecode beside the sent files would change the hash when the job starts again.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    os.environ[FOLDER] = str(folder)
    find_sent_project()


def find_sent_project() -> None:
    """Import `project` from the channel in this process, if `use_sent` has been called for it.

    The package `entry_point` calls this, so it holds in every process of the job.
    """
    if folder := os.environ.get(FOLDER):
        find_project_in(Path(folder))


def find_project_in(folder: Path) -> None:
    """Import `project` from this folder in this process. Installed packages take precedence."""
    others = [path for path in sys.path if not Path(path, PACKAGE).is_dir()]
    sys.path[:] = [*others, str(folder.absolute()), str(PROGRAM)]


def configs() -> Path:
    """Returns the folder of the configuration files: the one that was sent, else the image's."""
    return Path(os.environ.get(FOLDER) or PROGRAM) / "configs"
