"""The interface of a source of encoded images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class UprightSizes:
    """Sizes in pixels of all images of a source, after their orientation is applied."""

    heights: NDArray[np.int32]
    widths: NDArray[np.int32]


class Source(Protocol):
    """The encoded images of one split, numbered from 0; an image always has the same number."""

    @property
    def classes(self) -> list[str]:
        """Class names; a label is a position in this list."""
        ...

    @property
    def labels(self) -> Tensor:
        """int32 or int64, shape (number of images,)."""
        ...

    @property
    def sizes(self) -> UprightSizes | None:
        """The images' sizes, or None if they are not known without reading the images."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> Tensor:
        """The encoded image, uint8, shape (bytes,). Raises OSError or DataError."""
        ...

    def following(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The images that replace these if they are damaged: the next ones on this host."""
        ...

    def key(self, index: int) -> str:
        """A printable name by which a person finds the image."""
        ...
