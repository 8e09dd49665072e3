"""One way of making batches, measured in a process of its own: `... pipelines_run CASE_AS_JSON`.

Prints its result as one line of JSON. The first three stages build on one another, the last on the
second; each is a stretch of time in which batches arrive without end:

    decode+resize  images are made and let go where they were made
    + batch        batches arrive in the training process
    + normalise    and become floats there, on the CPU
    + transfer     or go to the GPU as bytes and become floats there, where there is a GPU
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.pipelines import process_tree
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.batch import Batch
from entry_point.data.decode.allocation import Allocate
from entry_point.data.decode.batch_maker import MakeImages
from entry_point.data.loader import Loader, build_loader, image_maker, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.plan.order import EpochPlan
from entry_point.data.sources.source import Source

STAGES = ("decode+resize", "+ batch", "+ normalise", "+ transfer")
FEWEST_BATCHES = 6
_DATA = DataConfig()  # for its mean and std


@dataclass(frozen=True)
class Case:
    """What is measured."""

    way: str
    """An engine, or spdl.io."""
    workers: int
    root: str
    format: str
    image_size: int
    batch_size: int
    seconds: float
    """Of each stage."""


@dataclass(frozen=True)
class Result:
    """Per stage, in the order of STAGES; without a GPU there are three."""

    images_per_second: list[float]
    cpu_ms_per_image: list[float]
    """Of the process and its children, user and system time."""
    megabytes: float
    """The most after any batch, see process_tree."""
    idle_megabytes: float
    """Before the pipeline began: mostly torch."""


@dataclass(frozen=True)
class EndlessPlan:
    """Epoch after epoch of the same plan, as one epoch."""

    plan: EpochPlan
    steps_per_epoch: int = 1 << 40
    samples_per_epoch: int = 1 << 40

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[NDArray[np.int64]]:
        return (step for e in count(epoch) for step in self.plan.batches(e, start_step))

    def read_ahead(self, reader: ThreadPoolExecutor, *, here: bool) -> None:
        self.plan.read_ahead(reader, here=here)

    def release(self) -> None:
        self.plan.release()


@dataclass(frozen=True)
class LetGo:
    """Makes images and hands over none."""

    make_images: MakeImages

    def __call__(
        self, source: Source, planner: CropPlanner, epoch: int, indices: Ints, allocate: Allocate
    ) -> tuple[Tensor, dict[int, str]]:
        images, damage = self.make_images(source, planner, epoch, indices, allocate)
        return images[:0].clone(), damage


def measure(case: Case) -> Result:
    torch.set_num_threads(1)
    first, *others = _consumers()
    result = Result([], [], 0.0, process_tree.private_megabytes())
    for let_go, consumers in ((True, [first]), (False, others)):
        loader = _start(case, let_go)
        batches = loader.epoch(0)
        for consume in consumers:
            result = _measure_stage(result, case, batches, consume)
        loader.close()
    return result


def _start(case: Case, let_go: bool) -> Loader:
    data = DataConfig(
        format=case.format,
        root=case.root,
        image_size=case.image_size,
        resize=max(256, case.image_size),
    )
    source = open_source(data, "train", Path())
    engine = "threads" if case.way == "spdl.io" else case.way
    pipeline = PipelineConfig(engine=engine, num_workers=case.workers)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    spec = LoaderSpec(data, pipeline, "train", case.batch_size, seed=0, device=device)
    images = _images(case, spec)
    plan = EndlessPlan(EpochPlan(len(source), case.batch_size, seed=0, train=True))
    return build_loader(source, spec, LetGo(images) if let_go else images, plan)


def _images(case: Case, spec: LoaderSpec) -> MakeImages:
    if case.way != "spdl.io":
        return image_maker(spec)
    from benchmarks.pipelines.spdl_images import spdl_images

    return spdl_images


def _consumers() -> list[Callable[[Batch], object]]:
    """What the training process does with a batch, stage by stage."""
    normalise = Normalise()

    def transfer(batch: Batch) -> None:
        normalise(batch.images.cuda(non_blocking=True))
        torch.cuda.synchronize()

    on_cpu: list[Callable[[Batch], object]] = [id, id, lambda batch: normalise(batch.images.cpu())]
    return [*on_cpu, transfer] if torch.cuda.is_available() else on_cpu


class Normalise:
    """(pixels / 255 - mean) / std into the same memory each time: fresh pages cost more."""

    def __init__(self) -> None:
        self._floats = torch.empty(0)

    def __call__(self, images: Tensor) -> Tensor:
        count, channels, height, width = images.shape
        place = images.device
        mean, std = (torch.tensor(v, device=place).repeat(width) for v in (_DATA.mean, _DATA.std))
        # Whole rows of interleaved pixels, since constants per channel are not vectorised.
        rows = images.permute(0, 2, 3, 1).reshape(count * height, width * channels)
        if self._floats.shape != rows.shape or self._floats.device != place:
            self._floats = torch.empty(rows.shape, device=place)
        torch.mul(rows, 1 / (255 * std), out=self._floats).sub_(mean / std)
        return self._floats.view(count, height, width, channels).permute(0, 3, 1, 2)


def _measure_stage(
    result: Result, case: Case, batches: Iterator[Batch], consume: Callable[[Batch], object]
) -> Result:
    _consume(batches, consume, case.seconds / 2, FEWEST_BATCHES + case.workers)  # to warm up
    cpu, start = process_tree.cpu_seconds(), time.perf_counter()
    images = case.batch_size * _consume(batches, consume, case.seconds, FEWEST_BATCHES)
    seconds = time.perf_counter() - start
    cpu = process_tree.cpu_seconds() - cpu
    return Result(
        [*result.images_per_second, images / seconds],
        [*result.cpu_ms_per_image, 1e3 * cpu / images],
        max(result.megabytes, _most_memory(batches, consume)),
        result.idle_megabytes,
    )


def _consume(
    batches: Iterator[Batch], consume: Callable[[Batch], object], seconds: float, fewest: int
) -> int:
    """How many batches came, in at least so many seconds."""
    end = time.perf_counter() + seconds
    for number, batch in enumerate(batches, 1):
        consume(batch)
        if number >= fewest and time.perf_counter() >= end:
            return number
    raise AssertionError("the plan has no end")


def _most_memory(batches: Iterator[Batch], consume: Callable[[Batch], object]) -> float:
    most = 0.0
    for _ in range(FEWEST_BATCHES):
        consume(next(batches))
        most = max(most, process_tree.private_megabytes())
    return most


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(measure(Case(**json.loads(sys.argv[1]))))) + "\n")
