"""What happened since the last log line: loss, speed, and time lost waiting for data."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from entry_point.training.devices import Devices
from entry_point.training.metrics_log import Record


@dataclass
class Interval:
    """Sums over the steps since the last log line. The loss stays on the device until read."""

    loss_sum: torch.Tensor
    """float64 scalar: this rank's sum of step losses."""
    steps: int = 0
    """Steps that `loss_sum` covers, including those before a resume."""
    images: int = 0
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
        self.steps = 0
        self.restart()

    @property
    def elapsed(self) -> float:
        """Seconds since the interval began."""
        return time.perf_counter() - self.started

    def add(self, loss: torch.Tensor, images: int, wait: float) -> None:
        """Count one step: its mean loss, the images of all ranks, this rank's seconds of wait."""
        self.loss_sum += loss.detach()
        self.steps += 1
        self.images += images
        self.wait += wait

    def total_loss(self, devices: Devices) -> float:
        """The loss sum, averaged over the ranks. A collective call."""
        return float(devices.sum(self.loss_sum.clone())) / devices.world_size

    def record(self, devices: Devices) -> Record:
        """The numbers for the log line. A collective call."""
        loss = self.total_loss(devices) / max(1, self.steps)
        elapsed = self.elapsed
        return {
            "loss": float(f"{loss:.6g}"),
            "images_per_s": round(self.images / elapsed, 1),
            "data_wait_pct": round(100 * self.wait / elapsed, 2),
        }
