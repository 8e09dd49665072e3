"""From single steps to the numbers that are logged of them."""

from __future__ import annotations

import torch

from entry_point.training.checkpoints.progress import Progress
from entry_point.training.device_batches import DeviceBatch
from entry_point.training.devices import Devices
from entry_point.training.measure.interval import Interval
from entry_point.training.measure.stall_meter import StallMeter
from entry_point.training.measure.stopwatch import Stopwatch
from entry_point.training.results.metrics_log import Record


class StepLog:
    """Loss, speed and the stall meter, since the last line, of this epoch, and of this process."""

    def __init__(self, devices: Devices, images_per_step: int) -> None:
        self._devices, self._images = devices, images_per_step
        self.interval = Interval.empty(devices.device)
        self.meter = StallMeter(devices)

    def begin_epoch(self) -> None:
        """Time is measured from now on."""
        self.interval.restart()
        self.meter.begin_epoch()

    def add(self, loss: torch.Tensor, batch: DeviceBatch, computing: Stopwatch) -> None:
        """Count one step, which ends now."""
        self.interval.add(loss, self._images, batch.damaged, batch.wait)
        self.meter.add(batch.wait, batch.copying, computing)

    def records(self, progress: Progress, lr: float) -> list[Record]:
        """The interval's record, and the epoch's after its last step. A collective call."""
        records = [progress.stamp({**self.interval.record(self._devices), "lr": lr})]
        self.interval.reset()
        self.meter.settle()
        if not progress.steps_left:
            records.append(progress.stamp(self.meter.record()))
        return records
