"""The interface of a source of encoded images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from entry_point.data.sources.label_kind import Kind


@dataclass(frozen=True)
class UprightSizes:
    """Sizes in pixels of all images of a source, after their orientation is applied."""

    heights: NDArray[np.int32]
    widths: NDArray[np.int32]


class Source(Protocol):
    """The encoded images of one split, numbered from 0; an image always has the same number."""

    @property
    def classes(self) -> list[str]:
        """Names of the model's outputs: the classes, the labels, or the target columns."""
        ...

    @property
    def kind(self) -> Kind:
        """What a sample has: one `class`, any number of `labels`, or `numbers`."""
        ...

    @property
    def labels(self) -> Tensor:
        """Of kind `class`: int32 or int64 (number of images,), positions in `classes`.

        Else float32 (number of images, number of classes): 1 for each of an image's labels and 0
        for the others; or the numbers.
        """
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
