"""Unpacks archives, which may be hostile, on every supported Python."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from entry_point.job.file_kinds import name_kind
from entry_point.job.whole_file import naming

_TIMES_LARGER, _BYTES_MORE = 10, 2**30
"""Limits of an archive's content, relative to its size and beyond it: weights hardly compress."""


def unpack_file(file: Path, folder: Path) -> None:
    """Extract a tar, which may be compressed with gzip, as `unpack` does.

    Raises OSError, which names a file or the folder, and tarfile.TarError if the file is no tar, is
    damaged, or holds more bytes than ten times its size and 1 GB.
    """
    with file.open("rb") as packed:
        start = packed.peek(tarfile.BLOCKSIZE)[: tarfile.BLOCKSIZE]
        is_gzip = start[:2] == b"\x1f\x8b"
        if not is_gzip and b"ustar" not in start and (kind := name_kind(file)):
            raise tarfile.TarError(f"it is {kind}")
        most = _TIMES_LARGER * file.stat().st_size + _BYTES_MORE
        plain = _Limited(gzip.open(packed) if is_gzip else packed, most)
        try:
            with tarfile.open(fileobj=cast(Any, plain), mode="r:") as archive, naming(folder):
                unpack(archive, folder)
            while plain.read(tarfile.RECORDSIZE):  # to the end, where gzip checks its checksum
                pass
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise tarfile.TarError(str(error)) from error


class _Limited:
    """A file that raises tarfile.TarError when more than a limit of bytes is read.

    tarfile itself loads headers of any size into memory, and never ends reading a negative size.
    """

    def __init__(self, file: Any, most: int) -> None:
        self._file, self._left, self._most = file, most, most
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        self._left -= size
        if size < 0 or self._left < 0:
            raise tarfile.TarError(f"it holds more than {self._most} bytes")
        content: bytes = self._file.read(size)
        return content


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract into the folder. Raises tarfile.TarError for devices and for paths outside of it.

    Python before 3.11.4, as in Debian 12, has no extraction filters; there, links are also refused.
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
