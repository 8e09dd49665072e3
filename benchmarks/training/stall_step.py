"""The published stall workload, on the CPU and on a GPU if there is one: docs/results/stall.md.

All contenders train in one process and alternate by epoch.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import torch

from benchmarks import measure
from benchmarks.pipelines.process_tree import cpu_seconds
from benchmarks.training.stall_contenders import (
    BATCH,
    CONTENDERS,
    IMAGES,
    PILLOW,
    PUBLISHED,
    THREADS,
    WORKERS,
    CropSkip,
    settings,
    training_loader,
    write_data,
)
from entry_point.config.train_config import TrainConfig
from entry_point.data.loader import Loader, open_source
from entry_point.job.devices import Devices
from entry_point.training.input import device_batches
from entry_point.training.learner import Learner
from entry_point.training.models import Normalize
from entry_point.training.results.times import COLUMNS, Moment, StallMeter, Times, settled
from entry_point.training.tasks.build_task import build_task

ROUNDS = 5
FREE_MODEL = "benchmarks.training.stall_contenders.glance"
TITLE = "The stall workload"


@dataclass(frozen=True)
class Figures:
    """One contender's figures."""

    step: float
    """Milliseconds, the mean over the steps of the median round; so is `data_wait`."""
    data_wait: float
    cpu: float
    """Milliseconds per image, of the median round."""
    waiting: float
    """Percent of the time of all steps."""

    @classmethod
    def of(cls, rounds: Sequence[tuple[Times, float]]) -> Figures:
        """Of the times of the steps, and the CPU seconds, of each round."""
        columns = [COLUMNS.index(part) for part in ("step", "data_wait")]
        of_steps = [times[:, columns] for times, _ in rounds]
        step, data_wait = 1e3 * np.median([times.mean(0) for times in of_steps], 0)
        cpu = 1e3 * statistics.median(seconds for _, seconds in rounds) / IMAGES
        all_steps, all_waits = np.concatenate(of_steps).sum(0)
        return cls(float(step), float(data_wait), cpu, 100 * float(all_waits / all_steps))


class Training:
    """One contender in training."""

    def __init__(self, config: TrainConfig, loader: Loader, devices: Devices) -> None:
        self._devices, self.loader = devices, loader
        normalize = Normalize(*config.data.normalization, devices.input_dtype)
        self._normalize = normalize.to(devices.device)
        source = open_source(config.data, "train", Path())
        self._learner = Learner(
            config,
            devices,
            build_task(config, source, devices.device),
            steps_per_epoch=loader.steps_per_epoch,
            channels=Path(),
        )
        self._epochs = count()

    def epoch(self) -> tuple[Times, float]:
        """Train the next epoch; returns the times of its steps but the first, and its CPU
        seconds."""
        meter, device = StallMeter(self._devices), self._devices.device
        began = cpu_seconds()
        meter.begin_epoch()
        batches = device_batches(self.loader.epoch(next(self._epochs)), device, self._normalize)
        for step, batch in enumerate(batches):
            computing = Moment(device)
            self._learner.loss(batch.images, batch.labels, step)
            self._learner.update()
            meter.add(batch.wait, computing, batch.cpu_s)
        return settled(meter.epoch), cpu_seconds() - began


def train_in_turns(
    names: Sequence[str], root: Path, model: str, devices: Devices, rounds: int
) -> dict[str, Figures]:
    contenders = {}
    for name in names:
        config = settings(name, root, model, devices.device.type)
        published = CropSkip() if name == PUBLISHED else None
        loader = training_loader(config, devices.device, published)
        contenders[name] = Training(config, loader, devices)
    epochs = {name: training.epoch for name, training in contenders.items()}
    found = measure.alternate(epochs, rounds + 1)
    for training in contenders.values():
        training.loader.close()
    # The first round warms up.
    return {name: Figures.of(some[1:]) for name, some in found.items()}


def measure_device(device: torch.device, root: Path) -> tuple[list[str], dict[str, Figures]]:
    """Tables for one device, and the results of the almost free model."""
    gpu = device.type == "cuda"
    model, rounds = ("resnet50", ROUNDS) if gpu else ("shufflenet_v2_x0_5", 3)
    devices = Devices(device, torch.bfloat16 if gpu else None)
    free = train_in_turns(list(CONTENDERS), root, FREE_MODEL, devices, ROUNDS)
    bound = train_in_turns([THREADS], root, model, devices, rounds)[THREADS]
    steps: list[list[object]] = []
    for name, one in free.items():
        values = (one.step, one.data_wait, one.cpu, free[PILLOW].step / one.step)
        steps.append([name, *(round(value, 2) for value in values)])
    pairs: list[tuple[str, str, object]] = [
        (PILLOW, WORKERS, 1.3), (PILLOW, THREADS, 3), (PUBLISHED, THREADS, ""),
    ]  # fmt: skip
    ratios = [
        [f"{slower} / {faster}", round(free[slower].step / free[faster].step, 2), goal]
        for slower, faster, goal in pairs
    ]
    waits = [[model, THREADS, round(bound.step, 1), f"{bound.waiting:.2f}"]]
    tables = [
        f"## {devices.describe()}",
        measure.table(["pipeline", "step, ms", "data wait", "CPU ms/image", "x Pillow"], steps),
        measure.table(["ratio of step times", "measured", "goal"], ratios),
        measure.table(["model", "pipeline", "step, ms", "data wait, % (goal: 1)"], waits),
    ]
    return tables, free


def main() -> None:
    torch.set_num_threads(1)
    devices = [torch.device("cpu")]
    if torch.cuda.is_available():
        devices.append(torch.device("cuda"))
    tables: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_data(root)
        for device in devices:
            some, free = measure_device(device, root)
            tables += some
    label = f"ms per step of {BATCH} images on the {devices[-1].type.upper()}, model almost free"
    steps = {name: one.step for name, one in free.items()}
    measure.bars("stall", f"{TITLE}: random crop, random mask, YCbCr", label, steps)
    measure.write(
        "stall",
        "stall",
        TITLE,
        "533x800 JPEGs (photographs, quality 90, 4:2:0) -> random 256x256 crop -> random mask -> "
        f"YCbCr -> / 255 -> a step of {BATCH} images; one worker or thread per core. As published, "
        "samples are masked and converted one by one on the CPU. In this template the device masks "
        "and converts whole batches: both are augmentations in project/stall.py. The first tables "
        "use an almost free model, so that input decides; the last uses a model that is slower "
        "than its input. "
        f"Wall-clock time: median of {ROUNDS} rounds without the first steps, whose batches are "
        "made ahead. CPU time: all processes.",
        tables,
        ("Pillow", "torchvision", "spdl-core"),
    )


if __name__ == "__main__":
    main()
