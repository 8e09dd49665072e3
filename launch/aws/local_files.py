"""The files of a folder that is to be uploaded."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from launch.request.launch_errors import LaunchError


class LocalFile(NamedTuple):
    """A file, and what it was like when it was listed."""

    path: Path
    name: str
    """Relative to the folder, with `/` between its parts."""
    bytes: int
    modified_ns: int

    def require_unchanged(self) -> None:
        """Raise LaunchError if the file has been written since it was listed."""
        now = self.path.stat()
        if (now.st_size, now.st_mtime_ns) != (self.bytes, self.modified_ns):
            raise LaunchError(
                f"{self.path} was written while it was uploaded: run again when it is at rest"
            )


def list_files(folder: Path) -> Iterator[LocalFile]:
    """All files below the folder in name order, links followed, hidden files and folders left out.

    Raises LaunchError naming what cannot be read or cannot be an object's name.
    """
    if not folder.is_dir():
        raise LaunchError(f"source={folder}: there is no such folder")
    for parent, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield _local_file(Path(parent) / name, folder)


def _local_file(path: Path, folder: Path) -> LocalFile:
    name = path.relative_to(folder).as_posix()
    try:
        name.encode()
        found = path.stat()
    except UnicodeEncodeError as error:
        raise LaunchError(f"{name!r}: a name in S3 must be UTF-8; rename the file") from error
    except OSError as error:
        _refuse(error)
    if not stat.S_ISREG(found.st_mode):
        raise LaunchError(f"{path}: is no regular file")
    return LocalFile(path, name, found.st_size, found.st_mtime_ns)


def _refuse(error: OSError) -> NoReturn:
    raise LaunchError(f"{error.filename}: cannot be read: {error.strerror}") from error
