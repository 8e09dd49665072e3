"""What happened since the last log line: loss, speed, and time lost waiting for data."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from entry_point.training.devices import Devices
from entry_point.training.results.metrics_log import Record


@dataclass
class Interval:
    """Sums over the steps since the last log line. The loss stays on the device until read."""

    loss_sum: torch.Tensor
    """float64 scalar: this rank's sum of step losses."""
    steps: int = 0
    """Steps that `loss_sum` covers, including those before a resume."""
    images: int = 0
    damaged: int = 0
    """This rank's images that were replaced by the next sample, as `steps`."""
    wait: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    @classmethod
    def empty(cls, device: torch.device) -> Interval:
        return cls(torch.zeros((), dtype=torch.float64, device=device))

    def restart(self) -> None:
        """Begin to measure time anew; what was not yet logged of the loss stays."""
        self.images, self.wait, self.started = 0, 0.0, time.perf_counter()

    def reset(self) -> None:
        """Begin a new interval."""
        self.loss_sum.zero_()
        self.steps = self.damaged = 0
        self.restart()

    @property
    def elapsed(self) -> float:
        """Seconds since the interval began."""
        return time.perf_counter() - self.started

    def add(self, loss: torch.Tensor, images: int, damaged: int, wait: float) -> None:
        """Count one step: its mean loss, the images of all ranks, this rank's damaged images and
        seconds of wait."""
        self.loss_sum += loss.detach()
        self.steps += 1
        self.images += images
        self.damaged += damaged
        self.wait += wait

    def totals(self, devices: Devices) -> tuple[float, int]:
        """The ranks' mean of the loss sum, and their damaged images. A collective call."""
        own = torch.stack([self.loss_sum, self.loss_sum.new_tensor(self.damaged)])
        loss_sum, damaged = devices.sum(own).tolist()
        return loss_sum / devices.world_size, int(damaged)

    def record(self, devices: Devices) -> Record:
        """The numbers for the log line. A collective call."""
        loss_sum, damaged = self.totals(devices)
        loss, elapsed = loss_sum / max(1, self.steps), self.elapsed
        return {
            "loss": float(f"{loss:.6g}"),
            "images_per_s": round(self.images / elapsed, 1),
            "data_wait_pct": round(100 * self.wait / elapsed, 2),
            **({"damaged": damaged} if damaged else {}),
        }

    def state(self, devices: Devices) -> dict[str, float]:
        """What a checkpoint keeps of it. A collective call."""
        loss_sum, damaged = self.totals(devices)
        return {"loss_sum": loss_sum, "damaged": damaged, "steps": self.steps}

    def load_state(self, state: Mapping[str, Any], devices: Devices) -> None:
        """The first rank goes on from the sums of all."""
        self.steps = state["steps"]
        if devices.is_first:
            self.loss_sum += state["loss_sum"] * devices.world_size
            self.damaged = state["damaged"]
