"""Labeled image files, wherever they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_op import Packed
from entry_point.contract.printable import printable
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.folder_index import find_side_indexes, index_holder
from entry_point.data.sources.index_cache import IndexCache
from entry_point.data.sources.index_file import SideIndexes
from entry_point.data.sources.label_kind import Kind


@dataclass(frozen=True)
class PathList:
    """Paths as one buffer: a million Python strings would take 100 MB and be copied by forks."""

    text: NDArray[np.uint8]
    """UTF-8, with a NUL after each path; file names may hold other bytes."""
    ends: NDArray[np.int64]
    """Where each path ends."""

    @classmethod
    def of(cls, chunks: Sequence[bytes]) -> PathList:
        """From encoded paths, each with a NUL after it."""
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


class FileSource:
    """A Source of these files, in this order; also the base of your own."""

    sizes = None
    index_cache: IndexCache | None = None
    """Where the side indexes are that decoding makes; None if it makes none."""
    _side_indexes: SideIndexes | None = None

    def __init__(
        self, files: Sequence[str | Path], labels: Any, classes: list[str], kind: Kind = "class"
    ) -> None:
        """`labels` of kind `class`: a position in `classes` per file; else rows as in `Source`."""
        self._files, self.classes, self.kind = files, classes, kind
        dtype = torch.int64 if kind == "class" else torch.float32
        self.labels: Tensor = torch.as_tensor(labels, dtype=dtype)

    def __len__(self) -> int:
        return len(self.labels)

    def file(self, index: int) -> str:
        return str(self._files[index])

    def read(self, index: int) -> Tensor:
        return read_bytes(self.file(index))

    def use_side_indexes(self, index_root: Path | None, root: str | Path) -> None:
        """Use the side indexes of the files below `root`; if it holds none, decoding makes them.

        Raises DataError if `index_root` is given and holds none.
        """
        if holder := index_holder(index_root, Path(root)):
            paths = [self.file(i).removeprefix(f"{root}/") for i in range(len(self))]
            self._side_indexes = find_side_indexes(holder, paths)
        else:
            self.index_cache = IndexCache(Path(root))

    def indexes(self, indices: NDArray[np.int64]) -> Packed | list[Tensor] | None:
        """See IndexedSource."""
        if self.index_cache is not None:
            return self.index_cache.find([self.file(i) for i in indices.tolist()])
        return None if self._side_indexes is None else self._side_indexes.packed(indices)

    def keep_indexes(self, indices: NDArray[np.int64], indexes: Sequence[Tensor]) -> None:
        """Store the side indexes that decoding these images made; empty for none."""
        if self.index_cache is not None:
            self.index_cache.keep([self.file(i) for i in indices.tolist()], indexes)

    def following(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return (indices + 1) % len(self)

    def key(self, index: int) -> str:
        return printable(self.file(index))
