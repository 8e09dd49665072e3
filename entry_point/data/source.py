"""Where encoded images come from."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


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

    def __len__(self) -> int: ...

    def read(self, index: int) -> Tensor:
        """The encoded image, uint8 (bytes,)."""
        ...

    def key(self, index: int) -> str:
        """A name a person can find the image by."""
        ...
