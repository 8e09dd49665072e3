"""Batches made in torch DataLoader worker processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from entry_point.data.batch import Batch
from entry_point.data.config import PipelineConfig
from entry_point.data.crops import CropPlanner
from entry_point.data.sampling import EpochPlan
from entry_point.data.source import Source

Request = tuple[int, NDArray[np.int64]]
"""Epoch and sample indices of one batch."""
MakeImages = Callable[[Source, CropPlanner, int, NDArray[np.int64]], Tensor]


@dataclass(frozen=True)
class BatchDataset(Dataset[Batch]):
    """Makes a whole batch per request, in whichever process asks."""

    source: Source
    planner: CropPlanner
    make_images: MakeImages

    def __getitem__(self, request: Request) -> Batch:
        epoch, indices = request
        return Batch(
            images=self.make_images(self.source, self.planner, epoch, indices),
            labels=self.source.labels[indices],
            indices=torch.from_numpy(indices),
        )


class _Requests(Sampler[Request]):
    """What the DataLoader asks its workers for; `start` chooses where the next pass begins."""

    def __init__(self, plan: EpochPlan) -> None:
        self._plan = plan
        self._start = (0, 0)

    def start(self, epoch: int, step: int) -> None:
        self._start = (epoch, step)

    def __iter__(self) -> Iterator[Request]:
        epoch, step = self._start
        return ((epoch, indices) for indices in self._plan.batches(epoch, step))


class WorkerLoader:
    """A Loader whose worker processes live until `close`; one that dies is a RuntimeError."""

    def __init__(
        self, dataset: BatchDataset, plan: EpochPlan, pipeline: PipelineConfig, pin_memory: bool
    ) -> None:
        self.steps_per_epoch = plan.steps_per_epoch
        self._requests = _Requests(plan)
        workers = min(pipeline.worker_count(), max(1, plan.steps_per_epoch))
        if pipeline.worker_count() == 0:
            workers = 0
        # The trainer answers signals: it ends the step, keeps a checkpoint and closes the loader.
        self._batches: DataLoader[Batch] | None = DataLoader(
            dataset,
            sampler=self._requests,
            batch_size=None,
            num_workers=workers,
            prefetch_factor=pipeline.prefetch if workers else None,
            persistent_workers=workers > 0,
            pin_memory=pin_memory,
            worker_init_fn=_ignore_signals,
        )

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The epoch's batches from `start_step` on; the steps before it cost nothing."""
        if self._batches is None:
            raise RuntimeError("the loader is closed")
        self._requests.start(epoch, start_step)
        return iter(self._batches)

    def close(self) -> None:
        """End the workers. The DataLoader ends them when its last reference goes."""
        self._batches = None


def _ignore_signals(_worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
