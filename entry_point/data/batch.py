"""The batches that a loader yields."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from entry_point.data.plan.crops import Geometry
from entry_point.job.text import printable


@dataclass(frozen=True)
class Damage:
    """An image that could not be decoded: its key and the reason, both made printable."""

    key: str
    reason: str

    def __post_init__(self) -> None:
        for field in ("key", "reason"):
            object.__setattr__(self, field, printable(getattr(self, field)))


@dataclass(frozen=True)
class Batch:
    images: Tensor
    """RGB, uint8 (N, 3, image_size, image_size), channels_last. With several views of an image:
    (N, views, 3, image_size, image_size), channels last."""
    labels: Tensor
    """int64 (N,); float32 (N, outputs) for a source of kind `labels` or `numbers`; the source's own
    form for kind `targets`."""
    indices: Tensor
    """int64 (N,): the samples' numbers in their source."""
    damage: tuple[Damage, ...] = ()
    """The images that could not be decoded; damaged images tried as replacements are not listed."""
    geometry: Geometry | None = None
    """Positions of the samples in their images; None if the loader does not provide them."""
    cpu_s: float = math.nan
    """CPU time of making the batch, in seconds; NaN if the decoder uses its own threads."""

    def pin_memory(self) -> Batch:
        return replace(
            self,
            images=self.images.pin_memory(),
            labels=self.labels.pin_memory(),
            indices=self.indices.pin_memory(),
        )
