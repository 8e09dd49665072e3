"""Ordinary tar files, written so that the same samples give the same bytes."""

from __future__ import annotations

import tarfile
from typing import BinaryIO

_END = 2 * tarfile.BLOCKSIZE


class TarWriter:
    """Appends members to an open file; metadata is the same for all."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, name: str, data: bytes) -> int:
        """Append one member; returns the offset of its data in the file."""
        member = tarfile.TarInfo(name)
        member.size = len(data)
        self._file.write(member.tobuf(tarfile.PAX_FORMAT))
        offset = self._file.tell()
        self._file.write(data)
        self._pad(tarfile.BLOCKSIZE)
        return offset

    def finish(self) -> None:
        self._file.write(bytes(_END))
        self._pad(tarfile.RECORDSIZE)

    def _pad(self, block: int) -> None:
        self._file.write(bytes(-self._file.tell() % block))
