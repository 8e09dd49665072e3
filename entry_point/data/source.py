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

    heights: NDArray[np.int64]
    widths: NDArray[np.int64]


class Source(Protocol):
    """A split's encoded images, numbered from 0; the numbering never changes."""

    @property
    def classes(self) -> list[str]:
        """Class names; a label is a place in this list."""
        ...

    @property
    def labels(self) -> Tensor:
        """int64 (number of images,)."""
        ...

    @property
    def sizes(self) -> UprightSizes | None:
        """Sizes where they are known without reading the images."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> Tensor:
        """The encoded image, uint8 (bytes,)."""
        ...

    def key(self, index: int) -> str:
        """A name a person can find the image by."""
        ...
