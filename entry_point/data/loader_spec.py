"""The settings that define a loader."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from entry_point.config.data_config import DataConfig, PipelineConfig

CPU = torch.device("cpu")


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
    profile: bool = False
    """Record in `Batch.spans` how long each part of making a batch takes."""

    @property
    def train(self) -> bool:
        return self.split == "train"
