"""The published stall workload, on the CPU and on a GPU if there is one: docs/results/stall.md.

All contenders train in one process and alternate by epoch.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
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


@dataclass
class Rounds:
    """One contender's step times and CPU seconds, by round."""

    times: list[Times]
    cpu: list[float]

    def milliseconds(self, part: str) -> float:
        """Returns the mean over the steps of the median round."""
        column = COLUMNS.index(part)
        return 1e3 * statistics.median(float(times[:, column].mean()) for times in self.times)


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
    names: list[str], root: Path, model: str, devices: Devices, rounds: int
) -> dict[str, Rounds]:
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
    return {name: Rounds(*map(list, zip(*each[1:], strict=True))) for name, each in found.items()}


def step_table(results: Mapping[str, Rounds]) -> str:
    header = ["pipeline", "step, ms", "data wait", "CPU ms/image", "x Pillow"]
    base = results[PILLOW].milliseconds("step")
    rows = [
        [
            name,
            *(round(rounds.milliseconds(p), 2) for p in ("step", "data_wait")),
            round(1e3 * statistics.median(rounds.cpu) / IMAGES, 2),
            round(base / rounds.milliseconds("step"), 2),
        ]
        for name, rounds in results.items()
    ]
    return measure.table(header, rows)


def wait_table(results: Mapping[str, Rounds], model: str) -> str:
    """Returns the share of data wait where the model is slower than the pipeline."""
    rows = []
    for name, rounds in results.items():
        times = np.concatenate(rounds.times)
        wait, step = (times[:, COLUMNS.index(part)].sum() for part in ("data_wait", "step"))
        rows.append(
            [model, name, round(rounds.milliseconds("step"), 1), f"{100 * wait / step:.2f}"]
        )
    return measure.table(["model", "pipeline", "step, ms", "data wait, % (goal: 1)"], rows)


def measure_device(device: torch.device, root: Path) -> tuple[list[str], dict[str, Rounds]]:
    """Tables for one device, and the results of the almost free model."""
    gpu = device.type == "cuda"
    model, rounds = ("resnet50", ROUNDS) if gpu else ("shufflenet_v2_x0_5", 3)
    devices = Devices(device, torch.bfloat16 if gpu else None)
    free = train_in_turns(list(CONTENDERS), root, FREE_MODEL, devices, ROUNDS)
    bound = train_in_turns([THREADS], root, model, devices, rounds)
    ratios = measure.table(
        ["ratio of step times", "measured", "goal"],
        [
            [f"{PILLOW} / {WORKERS}", _ratio(free, PILLOW, WORKERS), 1.3],
            [f"{PILLOW} / {THREADS}", _ratio(free, PILLOW, THREADS), 3],
            [f"{PUBLISHED} / {THREADS}", _ratio(free, PUBLISHED, THREADS), ""],
        ],
    )
    title = f"## {devices.describe()}\n"
    return [title, step_table(free), ratios, wait_table(bound, model)], free


def _ratio(results: Mapping[str, Rounds], slower: str, faster: str) -> float:
    return round(results[slower].milliseconds("step") / results[faster].milliseconds("step"), 2)


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
    steps = {name: rounds.milliseconds("step") for name, rounds in free.items()}
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
