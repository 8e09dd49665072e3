"""The training program, fed by DALI's own reader: `-m benchmarks.gpu.dali_reader_job OVERRIDES`.

The data are plain files, `data=folder`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.pipelines.dali_reader import DaliReader
from entry_point import train
from entry_point.config.train_config import TrainConfig
from entry_point.data.loader import dataset_root
from entry_point.training import trainer
from entry_point.training.devices import Devices
from entry_point.training.input import TrainingInput, loader_spec
from entry_point.training.stop import StopRequest


class _FedByDali(TrainingInput):
    """Validation has this template's loader."""

    def __init__(
        self, config: TrainConfig, channels: Path, devices: Devices, stop: StopRequest
    ) -> None:
        super().__init__(config, channels, devices, stop)
        spec = loader_spec(config, devices, "train")
        steps = self.train_loader.steps_per_epoch
        self.train_loader = DaliReader(dataset_root(config.data, channels), spec, steps)


def main(arguments: list[str]) -> int:
    trainer.TrainingInput = _FedByDali  # type: ignore[attr-defined]
    return train.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
