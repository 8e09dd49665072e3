"""A trainer that fails if a step of the steady part of an epoch waits for the device.

torch knows of every such wait in its own operators: `torch.cuda.set_sync_debug_mode("error")`.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np
import torch

from entry_point.config.train_config import TrainConfig
from entry_point.contract.metrics_line import STEP_PARTS
from entry_point.contract.run_folder import RunFolder
from entry_point.training.devices import Devices
from entry_point.training.input import DeviceBatch
from entry_point.training.trainer import Trainer

SETTLING_STEPS = 3


class SteadyTrainer(Trainer):
    """Allows waits in the first steps of an epoch, and in steps with a log line or checkpoint."""

    steady_steps = 0

    def _train_step(self, batch: DeviceBatch) -> None:
        self._set_mode(self._is_steady())
        super()._train_step(batch)
        if self._logs():
            self._set_mode(False)

    def _logs(self) -> bool:
        every = self.config.trainer.log_every_steps
        return self.progress.global_step % every == 0 or not self.progress.steps_left

    def _is_steady(self) -> bool:
        steady = self.progress.step >= SETTLING_STEPS
        self.steady_steps += steady
        return steady

    def _set_mode(self, strict: bool) -> None:
        if self.devices.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error" if strict else "default")


def first_waits(config: TrainConfig, run: RunFolder, devices: Devices) -> tuple[int, float, float]:
    """Train; returns the number of steps that were watched, and the seconds of data wait in the
    first step of an epoch and in the other steps' worst percent, medians over the epochs but the
    first. Raises RuntimeError if a watched step waits for the device."""
    with closing(SteadyTrainer(config, run, devices)) as trainer:
        trainer.fit()
        trainer._set_mode(False)
        steps = trainer.progress.steps_per_epoch
        waits = trainer.log.meter.all()[:, STEP_PARTS.index("data_wait")].reshape(-1, steps)[1:]
    first, others = np.median(waits[:, 0]), np.percentile(waits[:, 1:], 99)
    return trainer.steady_steps, float(first), float(others)
