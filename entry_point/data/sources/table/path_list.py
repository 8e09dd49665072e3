"""The paths of a table: checked, relative to the folder of images, in one buffer."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entry_point.data.sources.table.bad_row import BadRowError, quoted
from entry_point.data.sources.table.columns import CHUNK

_NUL, _SLASH, _DOT = b"\0/."


@dataclass(frozen=True)
class PathList:
    """Paths as one buffer: a million Python strings would take 100 MB and be copied by forks."""

    text: NDArray[np.uint8]
    """UTF-8, with a NUL after each path; file names may hold other bytes."""
    ends: NDArray[np.int64]
    """Where each path ends."""

    @classmethod
    def of(cls, chunks: Sequence[bytes]) -> PathList:
        """From the `encoded` paths of each chunk."""
        text = np.frombuffer(bytearray().join(chunks), np.uint8)
        return cls(text, np.flatnonzero(text == 0))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> str:
        start = int(self.ends[row - 1]) + 1 if row else 0
        return self.text[start : int(self.ends[row])].tobytes().decode(errors="surrogateescape")

    def cut(self, rows: range) -> PathList:
        """A copy of these rows, which follow each other."""
        if not rows:
            return PathList.of([])
        start = int(self.ends[rows[0] - 1]) + 1 if rows[0] else 0
        return PathList.of([self.text[start : int(self.ends[rows[-1]]) + 1].tobytes()])

    def chunks(self) -> Iterator[bytes]:
        """All paths, a few thousand at a time, each with a NUL after it."""
        start = 0
        for last in range(CHUNK - 1, len(self) + CHUNK - 1, CHUNK):
            end = int(self.ends[min(last, len(self) - 1)]) + 1
            yield self.text[start:end].tobytes()
            start = end


def decoded(chunk: bytes) -> list[str]:
    """The paths of a chunk of a PathList."""
    return chunk[:-1].decode().split("\0")


def encoded(paths: Sequence[str]) -> bytes:
    """A chunk of a PathList. Raises BadRowError for a path that cannot be UTF-8."""
    try:
        return "\0".join([*paths, ""]).encode()
    except UnicodeEncodeError:
        row = next(i for i, path in enumerate(paths) if re.search("[\ud800-\udfff]", path))
        raise BadRowError(row, f"the path {quoted(paths[row])} is not valid text") from None


def relative_paths(
    column: Sequence[Any], folder: str, prefix: str | None, key: str
) -> Sequence[str]:
    """The column's paths, relative to the absolute path `folder`.

    Raises BadRowError for a path that leads out of it; `key` is the group of the table's settings.
    """
    if set(map(type, column)) != {str}:
        row = next(i for i, path in enumerate(column) if not isinstance(path, str))
        raise BadRowError(row, f"the path is {quoted(column[row])}: must be text")
    if prefix is not None:
        column = [path.removeprefix(prefix) for path in column]
    if _are_plain(column):
        return column
    return [_relative(row, path, folder, key) for row, path in enumerate(column)]


def _are_plain(paths: Sequence[str]) -> bool:
    """Whether no path is absolute, is a URI, or has a part that is empty or begins with a dot."""
    text = np.frombuffer("\0".join(["", *paths, ""]).encode(errors="replace"), np.uint8)
    edge = (text == _NUL) | (text == _SLASH)  # of a part
    empty_or_dot = edge[:-1] & (edge[1:] | (text[1:] == _DOT))
    return np.count_nonzero(text == _NUL) == len(paths) + 1 and not empty_or_dot.any()


def _relative(row: int, path: str, folder: str, key: str) -> str:
    if "://" in path:
        raise BadRowError(
            row,
            f"the path {quoted(path)} is no file: set {key}.prefix to the part of it that the "
            f"folder {folder} stands for",
        )
    if "\0" in path:
        raise BadRowError(row, f"the path {quoted(path)} holds a NUL character")
    if not path.strip():
        raise BadRowError(row, "the path is empty")
    found = posixpath.normpath(posixpath.join(folder, path))
    if not found.startswith(f"{folder.rstrip('/')}/"):
        images = "data.images" if key.startswith("data.") else "images"
        raise BadRowError(
            row,
            f"the path {quoted(path)} leads out of the folder {folder}: set {images} to a folder "
            "that holds all images",
        )
    return found[len(folder.rstrip("/")) + 1 :]
