"""How much the check does: full size on a GPU; on a CPU just enough to show that it works."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Size:
    """The workload."""

    model: str
    precision: str
    image_size: int
    images: int
    batches: tuple[int, int]
    """Images per step: the usual batch, and a large one."""


FULL = Size("resnet50", "bf16", 224, 25_600, (256, 1024))
DRY = Size("tests.own_models.tiny_net_with_state", "fp32", 64, 64, (8, 16))
WORKERS = 4
"""The goal's cores."""


@dataclass
class Check:
    """One run of the check."""

    device: str
    folder: Path
    """Where results and logs go."""
    minutes: float
    """Time for one part."""
    began: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> Size:
        return FULL if self.device == "cuda" else DRY

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def seconds_left(self) -> float:
        """Until this part must end."""
        return 60 * self.minutes - (time.monotonic() - self.began)
