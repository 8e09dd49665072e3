"""Image files of any format without labels, for prediction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entry_point.contract.printable import printable
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.label_kind import Kind


class UnlabeledFiles:
    """The given files, in the given order."""

    kind: Kind = "class"
    sizes = None

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = [str(path) for path in paths]
        self.classes: list[str] = []
        self.labels = torch.full((len(paths),), -1)

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, index: int) -> Tensor:
        return read_bytes(self._paths[index])

    def following(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return (indices + 1) % len(self)

    def key(self, index: int) -> str:
        return printable(self._paths[index])
