"""The published stall workload's step: Pillow's pipeline, the published operator's, and ours.

`python -m benchmarks.training.stall_step` writes docs/results/stall.md and its plot: on the CPU,
and on a GPU where there is one. All contenders train in one process, an epoch each in turn.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks import measure
from benchmarks.training.stall_contenders import (
    BATCH,
    CONTENDERS,
    IMAGES,
    PUBLISHED,
    settings,
    training_loader,
    write_data,
)
from entry_point.config.train_config import TrainConfig
from entry_point.contract.metrics_line import STEP_PARTS
from entry_point.data.loader import Loader
from entry_point.training.device_transform import DeviceTransform
from entry_point.training.devices import Devices
from entry_point.training.input import device_batches
from entry_point.training.learner import Learner
from entry_point.training.measure.stall_meter import StallMeter, Times
from entry_point.training.measure.stopwatch import Stopwatch

ROUNDS = 5
FREE_MODEL = "benchmarks.training.stall_contenders.glance"
BASELINE = next(iter(CONTENDERS))
OURS = "ours"
SAME_FILES = "ours: threads, plain files"


@dataclass
class Rounds:
    """What one contender took, round by round."""

    times: list[Times] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def milliseconds(self, part: str) -> float:
        """The median round's mean over its steps."""
        column = STEP_PARTS.index(part)
        return 1e3 * statistics.median(float(times[:, column].mean()) for times in self.times)


class Training:
    """One contender in training."""

    def __init__(self, config: TrainConfig, loader: Loader, devices: Devices) -> None:
        self._devices, self._config, self.loader = devices, config, loader
        self._prepare = DeviceTransform(config.data, config.trainer.seed).to(devices.device)
        self._learner = Learner(
            config,
            devices,
            num_classes=6,
            steps_per_epoch=loader.steps_per_epoch,
            channels=Path(),
        )
        self.rounds = Rounds()

    def epoch(self, number: int) -> None:
        """Train an epoch; all of it counts: what was made ahead took its time too."""
        meter, device = StallMeter(self._devices), self._devices.device
        began = _cpu_seconds()
        meter.begin_epoch()
        batches = device_batches(
            self.loader.epoch(number),
            device,
            partial(self._prepare, epoch=number),
            self._config.trainer.channels_last,
        )
        for step, batch in enumerate(batches):
            with Stopwatch(device) as computing:
                self._learner.loss(batch.images, batch.labels, step)
                self._learner.update()
            if device.type == "cuda":
                torch.cuda.synchronize()
            meter.add(batch.wait, batch.copying, computing)
        if number:  # the first round warms up
            self.rounds.times.append(meter.epoch)
            self.rounds.cpu.append(_cpu_seconds() - began)


def _cpu_seconds() -> float:
    """Of this process and its workers."""
    ticks = 0
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def train_in_turns(
    names: list[str], root: Path, model: str, devices: Devices, rounds: int
) -> dict[str, Rounds]:
    contenders = {}
    for name in names:
        config = settings(name, root, model, devices.device.type)
        contenders[name] = Training(config, training_loader(name, config), devices)
    return take_turns(contenders, rounds)


def take_turns(contenders: Mapping[str, Training], rounds: int) -> dict[str, Rounds]:
    for number in range(rounds + 1):
        for training in contenders.values():
            training.epoch(number)
    for training in contenders.values():
        training.loader.close()
    return {name: training.rounds for name, training in contenders.items()}


def step_table(results: Mapping[str, Rounds]) -> str:
    header = ["pipeline", "step, ms", "data wait", "copy", "compute", "CPU ms/image", "x pillow"]
    base = results[BASELINE].milliseconds("step")
    rows = [
        [
            name,
            *(round(rounds.milliseconds(p), 2) for p in ("step", "data_wait", "copy", "compute")),
            round(1e3 * statistics.median(rounds.cpu) / IMAGES, 2),
            round(base / rounds.milliseconds("step"), 2),
        ]
        for name, rounds in results.items()
    ]
    return measure.table(header, rows)


def wait_table(results: Mapping[str, Rounds], model: str) -> str:
    """The share of waiting where the model needs more time than the pipeline."""
    rows = []
    for name, rounds in results.items():
        times = np.concatenate(rounds.times)
        wait, step = (times[:, STEP_PARTS.index(part)].sum() for part in ("data_wait", "step"))
        rows.append(
            [model, name, round(rounds.milliseconds("step"), 1), f"{100 * wait / step:.2f}"]
        )
    return measure.table(["model", "pipeline", "step, ms", "data wait, % (bar: 1)"], rows)


def measure_device(device: torch.device, root: Path) -> tuple[list[str], dict[str, Rounds]]:
    """Tables for one device, and the results of the model that costs next to nothing."""
    gpu = device.type == "cuda"
    model, rounds = ("resnet50", ROUNDS) if gpu else ("shufflenet_v2_x0_5", 3)
    devices = Devices(device, torch.bfloat16 if gpu else None)
    free = train_in_turns(list(CONTENDERS), root, FREE_MODEL, devices, ROUNDS)
    bound = train_in_turns([SAME_FILES], root, model, devices, rounds)
    base, drop_in = free[BASELINE], free["workers, as published"]
    ours = free[SAME_FILES].milliseconds("step")
    bars = measure.table(
        ["ratio of step times", "measured", "bar"],
        [
            [f"{BASELINE} / workers", _ratio(base, drop_in.milliseconds("step")), 1.3],
            [f"{BASELINE} / {SAME_FILES}", _ratio(base, ours), 3],
            [f"{PUBLISHED} / {SAME_FILES}", _ratio(free[PUBLISHED], ours), ""],
        ],
    )
    title = f"## {devices.describe()}\n"
    return [title, step_table(free), bars, wait_table(bound, model)], free


def _ratio(slower: Rounds, milliseconds: float) -> float:
    return round(slower.milliseconds("step") / milliseconds, 2)


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
    steps = {name: rounds.milliseconds("step") for name, rounds in free.items()}
    label = f"ms per step of {BATCH} images, {devices[-1].type}, input-bound"
    measure.bars("stall", "The stall workload", label, steps, OURS)
    text = measure.write(
        "stall",
        "The stall workload",
        f"533x800 JPEGs (photographs, quality 90, 4:2:0) -> random 256x256 crop -> random mask -> "
        f"YCbCr -> / 255 -> a step of {BATCH} images, with one worker or thread per core. As "
        "published, samples are masked and converted one by one on the CPU; ours take YCbCr from "
        "the decoder and are masked in batch on the device. First a model that costs next to "
        "nothing, so that input decides; then one that needs longer than its input. All train in "
        f"one process, an epoch each in turn; median of {ROUNDS} rounds by the clock, beside the "
        "CPU time of all processes.",
        tables,
        ("Pillow", "torchvision", "spdl-core"),
    )
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
