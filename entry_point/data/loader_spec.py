"""The specification of a loader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from entry_point.config.augment_config import AugmentConfig
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.job.text import counted

CPU = torch.device("cpu")
AHEAD = 2
"""Batches decoded ahead of use: per worker process, or by all threads together."""
DALI_CALLERS = 2
"""Number of threads that call DALI: while DALI decodes for one, the other reads files."""


@dataclass(frozen=True)
class LoaderSpec:
    """One rank's loader of a split."""

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
    """Epochs in the order of reading; near the end of one, the next epoch is prepared."""

    @property
    def train(self) -> bool:
        return self.split == "train"

    @property
    def decodes_here(self) -> bool:
        """Whether this process decodes, rather than its child processes."""
        return self.pipeline.engine != "workers" or not self.pipeline.worker_count()

    def describe(self) -> str:
        """Returns the engine and its number of workers per rank."""
        workers = counted(self.pipeline.worker_count(), "worker")
        return f"{self.pipeline.name()}; {workers} per rank and split"
