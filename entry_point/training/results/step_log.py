"""Turns single steps into the numbers that are logged, and stops the job when a loss is NaN or
infinite."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from entry_point.config.train_config import OptimConfig
from entry_point.job import exit_codes
from entry_point.job.devices import Devices, HostCopy
from entry_point.job.program import UserError
from entry_point.training.checkpoints import BEST, newest_first
from entry_point.training.input import DeviceBatch
from entry_point.training.progress import Progress
from entry_point.training.results.headspace import cores_needed
from entry_point.training.results.log import Record
from entry_point.training.results.times import StallMeter, Stopwatch


class StepLog:
    """The steps since the last log line, those of this epoch, and those of this process."""

    def __init__(self, devices: Devices, images_per_step: int) -> None:
        self._devices, self._images = devices, images_per_step
        self._interval = _Interval(torch.zeros((), dtype=torch.float64, device=devices.device))
        self.meter = StallMeter(devices)

    def begin_epoch(self) -> None:
        """Start the clocks."""
        self._interval.restart_clock()
        self.meter.begin_epoch()

    def add(self, loss: torch.Tensor, batch: DeviceBatch, computing: Stopwatch) -> None:
        """Count one step, which ends now."""
        self._interval.add(loss, self._images, batch.damaged)
        self.meter.add(batch.wait, batch.copying, computing, batch.cpu_s)

    def records(self, progress: Progress, step: Record) -> list[Record]:
        """Returns the interval's record with that of its last `step`, and after an epoch's last
        step the epoch's. A collective call."""
        waited = self.meter.waited()
        records = [progress.stamp({**self._interval.record(self._devices, waited), **step})]
        self._interval.reset()
        if not progress.steps_left:
            records.append(progress.stamp(self.meter.record()))
        return records

    def cores_needed(self, speedup: float | None = None) -> str:
        """Returns how many cores this rank's input needs, see `headspace.cores_needed`."""
        ranks = self._devices.world_size
        return cores_needed(
            self.meter.settled(), self._images // ranks, self.meter.input_cpu, speedup, ranks
        )

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps. A collective call."""
        return {"interval": self._interval.state(self._devices)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned; other keys are ignored."""
        self._interval.load_state(state["interval"], self._devices)


@dataclass
class _Interval:
    """Sums over the steps since the last log line. The loss stays on the device until read."""

    loss_sum: torch.Tensor
    """float64 scalar: this rank's sum of step losses."""
    steps: int = 0
    """Steps that `loss_sum` covers, including those before a resume."""
    images: int = 0
    damaged: int = 0
    """This rank's damaged images in `steps`; each was replaced by the next sample."""
    started: float = field(default_factory=time.perf_counter)

    def restart_clock(self) -> None:
        """Measure speed from now on; keep the loss that is not yet logged."""
        self.images, self.started = 0, time.perf_counter()

    def reset(self) -> None:
        """Start a new interval."""
        self.loss_sum.zero_()
        self.steps = self.damaged = 0
        self.restart_clock()

    def add(self, loss: torch.Tensor, images: int, damaged: int) -> None:
        """Count one step: its mean loss, all ranks' images, this rank's damage."""
        self.loss_sum += loss.detach()
        self.steps += 1
        self.images += images
        self.damaged += damaged

    def record(self, devices: Devices, waited: float) -> Record:
        """Returns the numbers of the log line, with the seconds this rank waited for data. A
        collective call."""
        loss_sum, damaged = self._totals(devices)
        loss, elapsed = loss_sum / max(1, self.steps), time.perf_counter() - self.started
        return {
            "loss": float(f"{loss:.6g}"),
            "images_per_s": round(self.images / elapsed, 1),
            "data_wait_pct": round(100 * waited / elapsed, 2),
            **({"damaged": damaged} if damaged else {}),
        }

    def _totals(self, devices: Devices) -> tuple[float, int]:
        """Returns the loss sum, averaged over the ranks, and their damaged images. A collective
        call."""
        own = torch.stack([self.loss_sum, torch.full_like(self.loss_sum, self.damaged)])
        loss_sum, damaged = HostCopy(devices.sum(own)).wait().tolist()
        return loss_sum / devices.world_size, int(damaged)

    def state(self, devices: Devices) -> dict[str, float]:
        """Returns what a checkpoint keeps. A collective call."""
        loss_sum, damaged = self._totals(devices)
        return {"loss_sum": loss_sum, "damaged": damaged, "steps": self.steps}

    def load_state(self, state: Mapping[str, Any], devices: Devices) -> None:
        """The first rank takes the sums of all ranks."""
        self.steps = state["steps"]
        if devices.is_first:
            self.loss_sum += state["loss_sum"] * devices.world_size
            self.damaged = state["damaged"]


class DivergedError(UserError):
    """A loss is NaN or infinite."""

    exit_code = exit_codes.FAILED

    @classmethod
    def of(cls, loss: str, optim: OptimConfig, checkpoints: Path) -> DivergedError:
        """`loss` is its value, and when. `checkpoints` is the folder of those from before."""
        clip = "clip gradients with optim.clip_norm=1"
        if optim.clip_norm is not None:
            clip = f"optim.clip_norm={optim.clip_norm:g}"
        restart = ""
        if newest_first(checkpoints):  # which resume with their own settings only
            restart = "; use another name to restart from scratch"
            if (best := checkpoints / BEST).exists():
                restart += f", or from model.weights={best}"
        return cls(f"{loss}: lower optim.lr={optim.lr:g}, or {clip}{restart}")


@dataclass
class _Entry:
    loss: HostCopy
    epoch: int
    step: int


class LossGuard:
    """Checks each step's loss: at once on a CPU, two steps later on a GPU.

    A GPU's loss is copied while later steps run, so checking needs no synchronization.
    """

    def __init__(self, optim: OptimConfig, checkpoints: Path) -> None:
        """What the error names, see `DivergedError.of`."""
        self._optim, self._checkpoints = optim, checkpoints
        self._waiting: deque[_Entry] = deque()

    def watch(self, loss: torch.Tensor, epoch: int, step: int) -> None:
        """Take one step's loss. Raises DivergedError for this or an earlier step."""
        self._waiting.append(_Entry(HostCopy(loss), epoch, step))
        self._check(lag=2 if loss.device.type == "cuda" else 0)

    def flush(self) -> None:
        """Check all losses taken so far."""
        self._check(lag=0)

    def _check(self, lag: int) -> None:
        while len(self._waiting) > lag:
            entry = self._waiting.popleft()
            loss = float(entry.loss.wait())
            if not math.isfinite(loss):
                found = f"loss={loss} in step {entry.step} of epoch {entry.epoch}"
                if entry.epoch == entry.step == 0:  # no rate has had an effect
                    must = "check the model, model.weights and task.loss"
                    raise DivergedError(f"{found}, before the first update: {must}")
                raise DivergedError.of(found, self._optim, self._checkpoints)
