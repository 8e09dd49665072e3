"""The batches that a loader yields."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from entry_point.data.plan.crops import Geometry
from entry_point.job.text import printable


@dataclass(frozen=True)
class Damage:
    """An image that could not be decoded; both texts are made printable."""

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
    """int64 (N,), or float32 (N, outputs) if the source's kind is `labels` or `numbers`; of kind
    `targets`, what the source makes."""
    indices: Tensor
    """int64 (N,), the samples' numbers in their source."""
    damage: tuple[Damage, ...] = ()
    """The batch's samples that could not be decoded; damaged replacements of them do not count."""
    geometry: Geometry | None = None
    """Where the samples lie in their images; None of loaders that do not say it."""
    cpu_s: float = math.nan
    """Seconds of CPU time that it took; NaN where a decoder's own threads make batches."""

    def pin_memory(self) -> Batch:
        return replace(
            self,
            images=self.images.pin_memory(),
            labels=self.labels.pin_memory(),
            indices=self.indices.pin_memory(),
        )
