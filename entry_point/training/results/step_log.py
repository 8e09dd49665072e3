"""Turns steps into records to log, and stops the job when a loss is NaN or infinite."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from entry_point.config.train_config import TrainConfig
from entry_point.job.devices import Devices, HostCopy
from entry_point.job.program import ExitCode, UserError
from entry_point.training.checkpoints import BEST, saved_steps
from entry_point.training.input import DeviceBatch
from entry_point.training.progress import Progress
from entry_point.training.results.log import Record
from entry_point.training.results.times import Moment, StallMeter


class DivergedError(UserError):
    """A loss is NaN or infinite."""

    exit_code = ExitCode.FAILED


class StepLog:
    """The steps since the last log line, those of this epoch, and those of this process."""

    def __init__(self, config: TrainConfig, devices: Devices, checkpoints: Path) -> None:
        """`checkpoints` is the folder to name in the error for a diverged loss."""
        self._config, self._devices, self._checkpoints = config, devices, checkpoints
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=devices.device)
        """This rank's sum of step losses since the last log line; stays on the device until
        read."""
        self._steps = 0
        """Number of steps in `_loss_sum`, including those before a resume."""
        self._damaged = 0
        """This rank's damaged images in these steps; each was replaced by the next sample."""
        self._unchecked: deque[tuple[HostCopy, int, int]] = deque()
        """Losses that are still to be checked, each with its epoch and step."""
        self._timed_steps, self._started = 0, time.perf_counter()
        self.meter = StallMeter(devices)

    def begin_epoch(self) -> None:
        """Restart the clocks; the loss that is not logged yet is kept."""
        self._timed_steps, self._started = 0, time.perf_counter()
        self.meter.begin_epoch()

    def add(
        self, loss: torch.Tensor, batch: DeviceBatch, computing: Moment, progress: Progress
    ) -> None:
        """Add the step at `progress`, which ends now. `computing` is the moment at which the model
        got its batch.

        On a CPU the loss is checked at once; on a GPU two steps later, as its copy runs beside
        later steps and needs no synchronization. Raises DivergedError for this or an earlier step.
        """
        self._loss_sum += loss.detach()
        self._steps += 1
        self._timed_steps += 1
        self._damaged += batch.damaged
        self.meter.add(batch.wait, computing, batch.cpu_s)
        self._unchecked.append((HostCopy(loss), progress.epoch, progress.step))
        self.check_losses(lag=2 if loss.device.type == "cuda" else 0)

    def check_losses(self, lag: int = 0) -> None:
        """Check all losses but the last `lag`. Raises DivergedError."""
        while len(self._unchecked) > lag:
            copied, epoch, step = self._unchecked.popleft()
            loss = float(copied.wait())
            if not math.isfinite(loss):
                found = f"loss={loss} in step {step} of epoch {epoch}"
                if epoch == step == 0:  # the learning rate has not had an effect yet
                    message = "check the model, model.weights and task.loss"
                    raise DivergedError(f"{found}, before the first update: {message}")
                raise self.diverged(found)

    def diverged(self, loss: str) -> DivergedError:
        """Returns the error for a loss that is not finite; `loss` has its value and step."""
        optim = self._config.optim
        clip = "clip gradients with optim.clip_norm=1"
        if optim.clip_norm is not None:
            clip = f"optim.clip_norm={optim.clip_norm:g}"
        restart = ""
        if saved_steps(self._checkpoints):  # the run resumes with the settings of these only
            restart = "; use another name to restart from scratch"
            if (best := self._checkpoints / BEST).exists():
                restart += f", or from model.weights={best}"
        return DivergedError(f"{loss}: lower optim.lr={optim.lr:g}, or {clip}{restart}")

    def records(self, progress: Progress, step: Record) -> list[Record]:
        """Returns the record of the log interval, with the values `step` of its last step; after an
        epoch's last step also the epoch's record. A collective call."""
        waited = self.meter.waited()
        loss_sum, damaged = self._totals()
        loss, elapsed = loss_sum / max(1, self._steps), time.perf_counter() - self._started
        images = self._timed_steps * self._config.trainer.batch_size
        interval: Record = {
            "loss": float(f"{loss:.6g}"),
            "images_per_s": round(images / elapsed, 1),
            "data_wait_pct": round(100 * waited / elapsed, 2),
            **({"damaged": damaged} if damaged else {}),
        }
        records = [progress.stamp({**interval, **step})]
        self._loss_sum.zero_()
        self._steps = self._damaged = 0
        self._timed_steps, self._started = 0, time.perf_counter()
        if not progress.steps_left:
            records.append(progress.stamp(self.meter.record()))
        return records

    def _totals(self) -> tuple[float, int]:
        """Returns the sum of losses, averaged over the ranks, and the number of their damaged
        images. A collective call."""
        own = torch.stack([self._loss_sum, torch.full_like(self._loss_sum, self._damaged)])
        if self._devices.world_size > 1:
            dist.all_reduce(own)
        loss_sum, damaged = HostCopy(own).wait().tolist()
        return loss_sum / self._devices.world_size, int(damaged)

    def state(self) -> dict[str, Any]:
        """Returns the state that a checkpoint keeps. A collective call."""
        loss_sum, damaged = self._totals()
        return {"interval": {"loss_sum": loss_sum, "damaged": damaged, "steps": self._steps}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned: the first rank takes the sums of all ranks. Other keys are
        ignored."""
        interval = state["interval"]
        self._steps = interval["steps"]
        if self._devices.is_first:
            self._loss_sum += interval["loss_sum"] * self._devices.world_size
            self._damaged = interval["damaged"]
