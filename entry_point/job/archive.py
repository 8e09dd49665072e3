"""Unpacking archives that may come from a stranger, on every supported Python."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, cast


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract into the folder; raises tarfile.TarError for what would leave it, and for devices.

    Python before 3.11.4, as in Debian 12, has no filters: there links are refused, too.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    for member in archive:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts:
            raise tarfile.TarError(f"{member.name!r} is outside of the folder")
        if not (member.isreg() or member.isdir()):
            raise tarfile.TarError(
                f"{member.name!r} is no file (links need Python 3.11.4 or newer)"
            )
        path = folder / name
        (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
        if member.isreg():
            with cast(IO[bytes], archive.extractfile(member)) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file)
