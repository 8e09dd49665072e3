"""The training program, fed by others' loaders.

`python -m benchmarks.gpu.peer_jobs dali-gpu|dali-cpu|torchvision OVERRIDES`. They read plain files
(`data=folder`); validation has this template's loader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.pipelines.peers import PeerLoader
from entry_point import train
from entry_point.config.train_config import TrainConfig
from entry_point.data.batch import Batch
from entry_point.data.loader import Loader, dataset_root
from entry_point.data.loader_spec import LoaderSpec
from entry_point.job.devices import Devices
from entry_point.job.stop import StopRequest
from entry_point.training import trainer
from entry_point.training.input import TrainingInput, loader_spec

MakeLoader = Callable[[Path, LoaderSpec, int], Loader]
"""(folder, spec, steps per epoch) -> the loader of the train split."""


def _dali(on_gpu: bool, root: Path, spec: LoaderSpec, steps: int) -> Loader:
    from benchmarks.pipelines.dali_reader import DaliReader

    if on_gpu or spec.device.type == "cpu":
        return DaliReader(root, spec, steps)

    class Pinned(DaliReader):
        """Decodes on the CPU into memory that the GPU copies from."""

        def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
            return (batch.pin_memory() for batch in super().epoch(epoch, start_step))

    return Pinned(root, replace(spec, device=torch.device("cpu")), steps)


LOADERS: dict[str, MakeLoader] = {
    "dali-gpu": partial(_dali, True),
    "dali-cpu": partial(_dali, False),
    "torchvision": partial(PeerLoader, "imagefolder"),
}


def main(arguments: list[str]) -> int:
    """Trains as `train` does; returns its exit code."""
    peer, *overrides = arguments

    class FedByPeer(TrainingInput):
        def __init__(
            self, config: TrainConfig, channels: Path, devices: Devices, stop: StopRequest
        ) -> None:
            super().__init__(config, channels, devices, stop)
            spec = loader_spec(config, devices, "train")
            steps = self.train_loader.steps_per_epoch
            self.train_loader = LOADERS[peer](dataset_root(config.data, channels), spec, steps)

    trainer.TrainingInput = FedByPeer  # type: ignore[attr-defined]
    return train.main(overrides)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
