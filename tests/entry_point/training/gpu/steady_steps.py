"""A trainer that fails if a step of the steady part of an epoch waits for the device.

torch knows of every such wait in its own operators: `torch.cuda.set_sync_debug_mode("error")`.
"""

from __future__ import annotations

from contextlib import closing

import torch

from entry_point.config.train_config import TrainConfig
from entry_point.job.devices import Devices
from entry_point.job.run_folder import RunFolder
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


def steady_steps(config: TrainConfig, run: RunFolder, devices: Devices) -> int:
    """Train; returns the number of steps that were watched. Raises RuntimeError if one of them
    waits for the device."""
    with closing(SteadyTrainer(config, run, devices)) as trainer:
        trainer.fit()
        trainer._set_mode(False)
    return trainer.steady_steps
