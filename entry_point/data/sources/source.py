"""Where encoded images come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class UprightSizes:
    """Sizes in pixels of all of a source's images after their orientation is applied."""

    heights: NDArray[np.int32]
    widths: NDArray[np.int32]


class Source(Protocol):
    """A split's encoded images, numbered from 0; the numbering never changes."""

    @property
    def classes(self) -> list[str]:
        """Class names; a label is a place in this list."""
        ...

    @property
    def labels(self) -> Tensor:
        """int32 or int64 (number of images,)."""
        ...

    @property
    def sizes(self) -> UprightSizes | None:
        """Sizes where they are known without reading the images."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> Tensor:
        """The encoded image, uint8 (bytes,). Raises OSError or DataError."""
        ...

    def following(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which images stand in for these if they are damaged: the next that can be read here."""
        ...

    def key(self, index: int) -> str:
        """A name a person can find the image by."""
        ...
