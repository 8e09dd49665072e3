"""The files of `project/` and `configs/` that `job.code=true` sends with a job.

Uses the standard library only, because `make docker-train` runs before anything is installed.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from entry_point.job import own_code
from entry_point.job.program import UserError
from entry_point.job.text import counted

KEY = "job.code"
ROOT = own_code.PROGRAM
MAX_BYTES = 50 << 20


@dataclass(frozen=True)
class OwnCode:
    """The files by their name below the channel."""

    files: dict[str, bytes]

    @property
    def hash(self) -> str:
        return own_code.content_hash(self.files)

    def describe(self) -> str:
        size = sum(map(len, self.files.values()))
        return f"code {self.hash}: {counted(len(self.files), 'file')}, {size / 1e3:,.1f} kB"

    def write(self, folder: Path) -> None:
        """Write the files into a folder for this code; existing files stay untouched."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or path.read_bytes() != content:
                path.write_bytes(content)


def split_code(arguments: Sequence[str]) -> tuple[OwnCode | None, list[str]]:
    """Returns the code to send if ``job.code=true`` is among the arguments, and the other
    arguments.

    Raises UserError for another value, and as `collect`.
    """
    values = [each.partition("=")[2] for each in arguments if each.startswith(f"{KEY}=")]
    for value in values:
        if value not in ("true", "false"):
            raise UserError(f"{KEY}={value}: must be true or false")
    others = [each for each in arguments if not each.startswith(f"{KEY}=")]
    return (collect() if values[-1:] == ["true"] else None), others


def collect(root: Path = ROOT) -> OwnCode:
    """Read the files to send, all but hidden files and bytecode. Follows links.

    Raises UserError if there is too much.
    """
    # Without the first, Python would prefer the image's package of the same name.
    files, size = {"project/__init__.py": b""}, 0
    for path in _paths(root):
        size += path.stat().st_size
        if size > MAX_BYTES:
            raise UserError(
                f"{path}: with this file, project/ and configs/ have more than "
                f"{MAX_BYTES >> 20} MB; code needs no more; put data and weights into a channel"
            )
        files[path.relative_to(root).as_posix()] = path.read_bytes()
    return OwnCode(files)


def _paths(root: Path) -> Iterator[Path]:
    """Yields the files in the order of their names."""
    for top in own_code.FOLDERS:
        for parent, folders, names in os.walk(root / top, followlinks=True):
            folders[:] = sorted(
                name for name in folders if not name.startswith(".") and name != "__pycache__"
            )
            for name in sorted(names):
                if not name.startswith(".") and not name.endswith(".pyc"):
                    yield Path(parent, name)


def require_free_channel(names: Iterable[str], key: str) -> None:
    """Raise UserError if one of the user's channels has the name of the code's."""
    if own_code.CHANNEL in names:
        raise UserError(
            f"{key}.{own_code.CHANNEL}: job.code=true sends your code in a channel of this name; "
            "give yours another"
        )
