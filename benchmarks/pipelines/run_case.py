"""Measure one engine with one number of workers; takes the Case and prints the Result as JSON.

Runs in a new process. The first three stages build on one another, the last on the second. Each
measures for a time how fast batches arrive:

    decode+resize  images are made and dropped where they were made
    + batch        batches arrive in the training process
    + normalize    and become floats there, on the CPU
    + transfer     or, on a machine with a GPU, go to it as bytes and become floats there
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.measure import keep_freed_memory
from benchmarks.pipelines import process_tree
from benchmarks.pipelines.peers import PEERS, PeerLoader
from entry_point.config.augment_config import AugmentConfig
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.batch import Batch
from entry_point.data.decode.allocation import Allocate
from entry_point.data.decode.decode import BatchDecoder
from entry_point.data.loader import Loader, build_decoder, build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.crops import CropPlan
from entry_point.data.plan.order import EpochPlan
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.source import Encoded
from entry_point.training.models import Normalize

STAGES = ("decode+resize", "+ batch", "+ normalize", "+ transfer")
DALI_READER = "dali.fn"
"""DALI reads the files, too. Like PEERS, it hands over its batches in all stages."""
FEWEST_BATCHES = 6


@dataclass(frozen=True)
class Case:
    """A measurement to make."""

    way: str
    """An engine, spdl.io, DALI_READER or one of PEERS."""
    workers: int
    root: str
    format: str
    image_size: int
    batch_size: int
    seconds: float
    """Duration of each stage."""
    augment: str = "{}"
    """The arguments of AugmentConfig, as JSON."""
    shown: str = ""
    """Name in the tables; empty: the engine's."""


@dataclass(frozen=True)
class Result:
    """One value per stage, in the order of STAGES; three without a GPU."""

    images_per_second: list[float]
    cpu_ms_per_image: list[float]
    """User and system time of the process and its children."""
    megabytes: float
    """Peak after any batch, see process_tree."""
    idle_megabytes: float
    """Before the pipeline starts: mostly torch."""


@dataclass(frozen=True)
class EndlessPlan:
    """All epochs of a plan as one endless epoch."""

    plan: EpochPlan
    steps_per_epoch: int = 1 << 40
    samples_per_epoch: int = 1 << 40

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[NDArray[np.int64]]:
        return (step for e in count(epoch) for step in self.plan.batches(e, start_step))

    def read_ahead(self, reader: ThreadPoolExecutor) -> None:
        self.plan.read_ahead(reader)

    def release(self) -> None:
        self.plan.release()


@dataclass(frozen=True)
class Dropping:
    """Decodes images and returns none of them."""

    decoder: BatchDecoder

    @property
    def has_threads(self) -> bool:
        return self.decoder.has_threads

    @property
    def uses_indexes(self) -> bool:
        return self.decoder.uses_indexes

    def sizes(self, encoded: Encoded) -> tuple[Ints, Ints]:
        return self.decoder.sizes(encoded)

    def decode(
        self, encoded: Encoded, plan: CropPlan, allocate: Allocate
    ) -> tuple[Tensor, dict[int, str]]:
        images, damage = self.decoder.decode(encoded, plan, allocate)
        return images[:0].clone(), damage

    def close(self) -> None:
        self.decoder.close()


def measure(case: Case) -> Result:
    torch.set_num_threads(1)
    keep_freed_memory()
    first, *others = _consumers()
    idle_megabytes = process_tree.private_megabytes()
    stages: list[tuple[float, float, float]] = []
    for drops, consumers in ((True, [first]), (False, others)):
        loader = endless_loader(case, drops)
        batches = loader.epoch(0)
        stages += [_measure_stage(case, batches, consume) for consume in consumers]
        loader.close()
    rates, cpu_ms, megabytes = zip(*stages, strict=True)
    return Result(list(rates), list(cpu_ms), max(megabytes), idle_megabytes)


def endless_loader(case: Case, drops: bool) -> Loader:
    """Its first epoch has no end; with `drops`, images are dropped where they are made."""
    size, resize = case.image_size, max(256, case.image_size)
    data = DataConfig(format=case.format, root=case.root, image_size=size, resize=resize)
    engine: Any = "threads" if case.way in ("spdl.io", DALI_READER, *PEERS) else case.way
    decoder: Any = "pillow" if case.way == "pillow" else "operator"
    engine = "workers" if case.way == "pillow" else engine
    pipeline = PipelineConfig(engine, decoder, num_workers=case.workers)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    spec = LoaderSpec(data, pipeline, "train", case.batch_size, seed=0, device=device)
    spec = replace(spec, augment=AugmentConfig(**json.loads(case.augment)))
    if case.way == DALI_READER:
        from benchmarks.pipelines.dali_reader import DaliReader

        return DaliReader(Path(case.root), spec, EndlessPlan.steps_per_epoch)
    if case.way in PEERS:
        return PeerLoader(case.way, Path(case.root), spec, EndlessPlan.steps_per_epoch)
    source = open_source(data, "train", Path())
    if source.index_store is not None and source.index_store.grows:
        source.index_store = None  # as in a first epoch; a folder's own index is used in any case
    decoder = _decoder(case, spec)
    plan = EndlessPlan(EpochPlan(len(source), case.batch_size, seed=0, train=True))
    return build_loader(source, spec, Dropping(decoder) if drops else decoder, plan)


def _decoder(case: Case, spec: LoaderSpec) -> BatchDecoder:
    if case.way != "spdl.io":
        return build_decoder(spec)
    from benchmarks.pipelines.spdl_images import SpdlDecoder

    return SpdlDecoder()


def _consumers() -> list[Callable[[Batch], object]]:
    """Returns what the training process does with a batch in each stage."""
    data = DataConfig()
    normalize = Normalize(*data.normalization)
    on_cpu: list[Callable[[Batch], object]] = [
        *(id, id, lambda batch: _normalized(normalize, batch.images.cpu()))
    ]
    if not torch.cuda.is_available():
        return on_cpu
    on_gpu = Normalize(*data.normalization).cuda()

    def transfer(batch: Batch) -> None:
        _normalized(on_gpu, batch.images.cuda(non_blocking=True))
        torch.cuda.synchronize()

    return [*on_cpu, transfer]


def _normalized(normalize: Normalize, images: Tensor) -> Tensor:
    """Returns TurboLoader's batches as they are: it normalizes them itself."""
    return images if images.is_floating_point() else normalize(images)


def _measure_stage(
    case: Case, batches: Iterator[Batch], consume: Callable[[Batch], object]
) -> tuple[float, float, float]:
    """Returns images per second, CPU milliseconds per image, and the most megabytes."""
    _consume(batches, consume, case.seconds / 2, FEWEST_BATCHES + case.workers)  # warm-up
    cpu, start = process_tree.cpu_seconds(), time.perf_counter()
    images = case.batch_size * _consume(batches, consume, case.seconds, FEWEST_BATCHES)
    seconds = time.perf_counter() - start
    cpu = process_tree.cpu_seconds() - cpu
    return images / seconds, 1e3 * cpu / images, _most_memory(batches, consume)


def _consume(
    batches: Iterator[Batch], consume: Callable[[Batch], object], seconds: float, fewest: int
) -> int:
    """Consume batches for at least `seconds`; returns their number."""
    end = time.perf_counter() + seconds
    for number, batch in enumerate(batches, 1):
        consume(batch)
        if number >= fewest and time.perf_counter() >= end:
            return number
    raise AssertionError("the plan is endless")


def _most_memory(batches: Iterator[Batch], consume: Callable[[Batch], object]) -> float:
    most = 0.0
    for _ in range(FEWEST_BATCHES):
        consume(next(batches))
        most = max(most, process_tree.private_megabytes())
    return most


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(measure(Case(**json.loads(sys.argv[1]))))) + "\n")
