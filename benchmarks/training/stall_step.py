"""The published stall workload, on the CPU and on a GPU if there is one: docs/results/stall.md.

All contenders train in one process and alternate by epoch.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import measure
from benchmarks.operator.op_crop_skip import crop_skip
from benchmarks.pipelines.process_tree import cpu_seconds
from benchmarks.sample_photographs import photographs, write_classes
from custom_op import jpeg_headers
from entry_point.config.packing_config import OptimizeConfig
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.loader import Loader, build_loader, open_source
from entry_point.data.packing.pack import pack
from entry_point.data.plan.crops import CropPlan
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.source import Encoded, Source
from entry_point.job.devices import Devices
from entry_point.training.input import device_batches, loader_spec
from entry_point.training.learner import Learner
from entry_point.training.models import Normalize
from entry_point.training.results.times import COLUMNS, Moment, StallMeter, Times, settled
from entry_point.training.tasks.build_task import build_task

ROUNDS = 5
FREE_MODEL = "benchmarks.training.stall_step.glance"
TITLE = "The stall workload"
IMAGES, BATCH = 512, 32
PILLOW = "Pillow + DataLoader, as published"
PUBLISHED = "crop + skip, as published (DataLoader workers)"
WORKERS = "this template (workers), transform on the CPU"
THREADS = "this template (threads), plain files"
# As published: the transform runs on the CPU, one sample at a time.
_CPU = ("augment.name=project.stall.StallSample", "augment.per=sample")
CONTENDERS: Mapping[str, tuple[str, ...]] = {
    PILLOW: ("pipeline=pillow", *_CPU),
    PUBLISHED: ("pipeline=workers", *_CPU),
    WORKERS: ("pipeline=workers", *_CPU),
    THREADS: ("pipeline=threads",),
    "this template (threads), shards": ("pipeline=threads", "data.format=shards"),
}


def write_data(root: Path) -> None:
    """Write root/folder/train, 533x800 JPEGs of six photographs, and root/shards, packed."""
    files = photographs()
    write_classes(root / "folder" / "train", files, IMAGES, len(files))
    pack(root / "folder", root / "shards", OptimizeConfig())


def settings(name: str, root: Path, model: str, device: str) -> TrainConfig:
    """Returns the recipe of experiment=stall for one contender."""
    form = "shards" if "shards" in name else "folder"
    chosen = [*CONTENDERS[name], f"data.root={root / form}", f"model.name={model}"]
    trainer = [f"trainer.device={device}", f"trainer.batch_size={BATCH}"]
    config, _ = load_train_config(["experiment=stall", "data.format=folder", *chosen, *trainer])
    return config


class CropSkip:
    """Decodes with the published operator: one sample of each image, neither turned nor resized."""

    has_threads = uses_indexes = False

    def sizes(self, encoded: Encoded) -> tuple[Ints, Ints]:
        heights, widths, _ = jpeg_headers(encoded.files).numpy().T
        return heights, widths

    def decode(
        self, encoded: Encoded, plan: CropPlan, allocate: Allocate
    ) -> tuple[Tensor, dict[int, str]]:
        images = empty_images(allocate, len(plan), plan.side)
        for i, box in enumerate(plan.boxes.tolist()):
            images[i] = crop_skip(encoded.files[i], *box)
        return images, {}

    def close(self) -> None: ...


def glance(num_classes: int) -> nn.Module:
    """Returns an almost free model: it reads one pixel in 16 by 16."""
    return nn.Sequential(
        nn.MaxPool2d(1, 16),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(48, num_classes),
    )


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
        """Returns the figures for the step times, and the CPU seconds, of each round."""
        columns = [COLUMNS.index(part) for part in ("step", "data_wait")]
        of_steps = [times[:, columns] for times, _ in rounds]
        step, data_wait = 1e3 * np.median([times.mean(0) for times in of_steps], 0)
        cpu = 1e3 * statistics.median(seconds for _, seconds in rounds) / IMAGES
        all_steps, all_waits = np.concatenate(of_steps).sum(0)
        return cls(float(step), float(data_wait), cpu, 100 * float(all_waits / all_steps))


class Training:
    """One contender in training."""

    def __init__(
        self, config: TrainConfig, source: Source, loader: Loader, devices: Devices
    ) -> None:
        self._devices, self.loader = devices, loader
        normalize = Normalize(*config.data.normalization, devices.input_dtype)
        self._normalize = normalize.to(devices.device)
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
        source = open_source(config.data, "train", Path())
        spec = loader_spec(config, devices, "train")
        spec = replace(spec, epochs=())  # no batch is made ahead while others train
        loader = build_loader(source, spec, CropSkip() if name == PUBLISHED else None)
        contenders[name] = Training(config, source, loader, devices)
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
