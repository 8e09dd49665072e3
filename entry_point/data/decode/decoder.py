"""What a decoder does: first the sizes of a batch's images, then, with a plan, their pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from entry_point.data.decode.allocation import Allocate
from entry_point.data.plan.crops import CropPlan
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.source import Encoded


@dataclass(frozen=True)
class Decoded:
    """The samples of a batch."""

    images: Tensor
    """uint8 (N, 3, side, side), channels_last. With any content where damaged."""
    damage: dict[int, str]
    """Why an image cannot be decoded, by its position among the batch's images."""
    stale_indexes: int = 0
    """Images whose side index did not fit the file, as it has changed: they decode slower."""
    new_indexes: Sequence[Tensor] = ()
    """The side index of each image that was made while it was decoded; empty for none."""


class Opened(Protocol):
    """A batch's images, whose sizes are known."""

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        """Upright heights and widths in pixels, int64 (N,); 1 x 1 of what cannot be decoded."""
        ...

    def decode(self, plan: CropPlan, allocate: Allocate) -> Decoded:
        """Returns the plan's samples: the same number of each image, which follow each other."""
        ...


class Decoder(Protocol):
    """Makes samples of encoded images, in any thread."""

    @property
    def has_threads(self) -> bool:
        """Whether threads of its own decode, and not the one that calls it."""
        ...

    @property
    def uses_indexes(self) -> bool:
        """Whether side indexes let it start near the crop."""
        ...

    def open(self, encoded: Encoded) -> Opened: ...

    def close(self) -> None:
        """End the threads of a decoder that has its own; by default there are none."""
        return
