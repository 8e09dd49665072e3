"""Refuses archives in the place of a dataset, with the command that unpacks them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from entry_point.data.errors import DataError
from entry_point.job.text import printable

_UNTAR = "mkdir -p {1} && tar -xf {0} -C {1}"
_UNPACK = {
    ".zip": "unzip -q {0} -d {1}",
    ".7z": "7z x {0} -o{1}",
    ".rar": "unar -o {1} {0}",
    **dict.fromkeys((".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz"), _UNTAR),
    **dict.fromkeys((".tar.zst", ".tar"), _UNTAR),
}
"""Commands that unpack archives, by suffix; they take a file and a folder."""


def is_archive(name: str) -> bool:
    return name.lower().endswith(tuple(_UNPACK))


def unpacking(file: Path) -> tuple[str, Path]:
    """Returns the command that unpacks an archive, and the folder into which it unpacks."""
    suffix = next(each for each in _UNPACK if file.name.lower().endswith(each))
    folder = file.with_name(file.name[: -len(suffix)])
    return _UNPACK[suffix].format(*(shlex.quote(str(each)) for each in (file, folder))), folder


def refuse_archives(folder: Path, names: Iterable[str]) -> None:
    """Raise DataError, with the commands that unpack them, if some of the files are archives."""
    archives = [name for name in names if is_archive(name)]
    if archives:
        commands, folders = zip(*(unpacking(folder / name) for name in archives[:3]), strict=True)
        root = folders[0] if len(archives) == 1 else folder
        raise DataError(
            printable(
                f"{folder} holds {', '.join(archives[:3])}: archives are not read; unpack with "
                f"`{' && '.join(commands)}` and set data.root={root}"
            )
        )
