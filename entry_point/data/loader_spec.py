"""The settings that define a loader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from entry_point.config.augment_config import AugmentConfig
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.job.program import counted

CPU = torch.device("cpu")
AHEAD = 2
"""Batches decoded ahead of use: per worker process, or by all threads together."""
DALI_CALLERS = 2
"""DALI has its own threads: one of ours reads files while DALI works for the other."""


@dataclass(frozen=True)
class LoaderSpec:
    """One rank's loader of one split."""

    data: DataConfig
    pipeline: PipelineConfig
    split: str
    """`train`: random crops in random order. `val`: every sample once, center-cropped."""
    batch_size: int
    """Samples per step of this rank."""
    seed: int
    rank: int = 0
    world_size: int = 1
    device: torch.device = CPU
    """For a CUDA device, batches are in pinned memory, or with DALI on the device."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    """How training samples are augmented."""
    epochs: Sequence[int] = ()
    """Epochs that will be read in this order: at the end of one, the next is made ahead."""

    @property
    def train(self) -> bool:
        return self.split == "train"

    @property
    def decodes_here(self) -> bool:
        """Whether this process decodes, and not its child processes."""
        return self.pipeline.engine != "workers" or not self.pipeline.worker_count()

    @property
    def batches_ahead(self) -> int:
        """Batches in progress or waiting at once."""
        engine = self.pipeline.engine
        workers = self.pipeline.worker_count()
        if engine == "workers":
            return workers * AHEAD
        return (DALI_CALLERS if engine == "dali" else max(1, workers)) + AHEAD

    def describe(self) -> str:
        """Returns the engine, and what each rank gives it."""
        data, workers = self.data, self.pipeline.worker_count()
        side = max([side for _, side in data.progressive] or [data.image_size])
        size = self.batch_size * 3 * max(data.views * side**2, data.image_size**2)
        if self._is_pinned:  # torch allocates it in powers of two
            size = 1 << (size - 1).bit_length()
        megabytes = self.batches_ahead * size / 1e6
        return (
            f"{self.pipeline.name()}; per rank and split {counted(workers, 'worker')} and up to "
            f"{counted(self.batches_ahead, 'batch')} ahead, {megabytes:.0f} MB of {self._memory()}"
        )

    @property
    def _is_pinned(self) -> bool:
        return self.device.type == "cuda" and self.pipeline.engine != "dali"

    def _memory(self) -> str:
        """Returns where batches wait."""
        if self.pipeline.engine not in ("threads", "dali"):
            return "shared, then pinned memory" if self._is_pinned else "shared memory"
        if self._is_pinned:
            return "pinned memory"
        return "GPU memory" if self.device.type == "cuda" else "memory"
