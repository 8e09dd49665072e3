"""What training sees, as digests: which samples, which boxes, which draws, which pixels.

`python -m tests.recorded.samples` writes `samples.json`. A digest that changes changes everybody's
training, and what a run that an earlier commit began resumes to. That all engines give the same
samples, tests/entry_point/data/engines shows.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entry_point.config.augment_config import AugmentConfig
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.policies import build_augmenter
from entry_point.data.plan.samples import Samples
from entry_point.data.plan.stream_order import StreamPlan
from entry_point.data.sources.stream import StreamSource
from tests.entry_point.data.packing.pack_command import pack
from tests.photographs import write_photo_folder
from tests.recorded.observed import digest

FILE = Path(__file__).with_name("samples.json")
SEEDS = (0, 7)
RANKS = ((0, 1), (0, 2), (1, 2), (2, 3))
"""Each a rank and the number of ranks."""
ORDERS: dict[str, dict[str, Any]] = {
    "each image once": {},
    "repeats": {"repeats": 3},
    "balance": {"balance": "classes"},
}
CROPS: dict[str, dict[str, Any]] = {
    "default": {},
    "small crops": {"scale": [0.02, 0.1], "ratio": [0.5, 2.0], "hflip": 0.2},
    "another size": {"image_size": 96, "progressive": [[0, 64], [1, 96]]},
}
POLICIES = ("trivial", "rand_timm", "color_jitter", "simclr", "erase")
IMAGES: dict[str, dict[str, Any]] = {
    "folder": {"format": "folder"},
    "map": {"format": "shards"},
    "stream": {"format": "shards", "access": "stream"},
}
BATCH = 5


def record(folder: Path) -> dict[str, str]:
    """Digest by name; `folder` gets photographs."""
    photos, shards = write_photo_folder(folder / "photos"), folder / "shards"
    assert pack(photos, shards, "shard_mb=0.5") == 0
    digests = {"photographs": digest(_bytes_of(photos))}
    digests |= dict(_orders(photos))
    digests |= dict(_boxes())
    digests |= dict(_draws())
    digests |= dict(_pixels(photos, shards))
    return digests


def _bytes_of(folder: Path) -> Iterator[bytes]:
    for file in sorted(folder.rglob("*.jpg")):
        yield file.read_bytes()


def _batches(
    root: Path, options: dict[str, Any], seed: int, rank: tuple[int, int], split: str = "train"
) -> Callable[[int], Iterator[Any]]:
    """The batches of an epoch."""
    shared = {"image_size": 48, "resize": 56}
    data = DataConfig(root=str(root), **{**shared, **options})
    pipeline = PipelineConfig("threads", num_workers=1)
    spec = LoaderSpec(data, pipeline, split, BATCH, seed, *rank)
    source = open_source(data, split, root)
    plan = None
    if isinstance(source, StreamSource):
        # Windows of one shard: the photographs fill few.
        train = split == "train"
        plan = StreamPlan(source, *rank, batch_size=BATCH, seed=seed, train=train, window_shards=1)
    return build_loader(source, spec, plan=plan).epoch


def _orders(photos: Path) -> Iterator[tuple[str, str]]:
    """The numbers of the samples in each step; the images of two epochs' first steps."""
    for name, options in ORDERS.items():
        for seed in SEEDS:
            for rank, ranks in RANKS:
                epoch = _batches(photos, options, seed, (rank, ranks))
                taken = (batch for number in (0, 1) for batch in islice(epoch(number), 3))
                key = f"order: {name}, seed {seed}, rank {rank} of {ranks}"
                yield key, digest(batch.indices.numpy().tobytes() for batch in taken)


def _sizes(count: int = 512) -> tuple[NDArray[np.int64], ...]:
    """Numbers, heights and widths of imagined images, from 1 pixel to phones' photographs."""
    rng = np.random.default_rng(0)
    heights, widths = np.exp(rng.uniform(0, np.log(4000), (2, count))).astype(np.int64)
    return np.arange(count), heights, widths


def _boxes() -> Iterator[tuple[str, str]]:
    for name, options in CROPS.items():
        for train in (True, False):
            for seed in SEEDS:
                planner = CropPlanner(DataConfig(root="x", **options), train, seed)
                images, *sizes = _sizes()
                plans = [planner.plan(Samples.of(epoch, images), *sizes) for epoch in (0, 1)]
                arrays = (a for plan in plans for a in (plan.boxes, plan.flips))
                split = "train" if train else "val"
                yield f"boxes: {name}, {split}, seed {seed}", digest(a.tobytes() for a in arrays)


def _draws() -> Iterator[tuple[str, str]]:
    """What is drawn for each sample: operations; strengths, which processors round differently."""
    for name in POLICIES:
        augmenter = build_augmenter(AugmentConfig(name=name), (0.485, 0.456, 0.406))
        assert augmenter is not None
        for seed in SEEDS:
            table = augmenter.table(seed, Samples.of(1, np.arange(512)), 48)
            operations = table[..., 0].astype(np.int64)
            strengths = ",".join(f"{value:.2e}" for value in table.mean(axis=(0, 1)))
            drawn = digest(iter([operations.tobytes()]))
            yield f"draws: {name}, seed {seed}", f"{drawn} {strengths}"


def _pixels(photos: Path, shards: Path) -> Iterator[tuple[str, str]]:
    """uint8 images, from files and from shards, as the operator decodes and resizes them."""
    for name, options in IMAGES.items():
        root = photos if options["format"] == "folder" else shards
        for split in ("train", "val"):
            epoch = _batches(root, options, 7, (0, 1), split)
            batches = list(epoch(1))
            yield f"pixels: {name}, {split}", digest(b.images.numpy().tobytes() for b in batches)
            yield f"labels: {name}, {split}", digest(b.labels.numpy().tobytes() for b in batches)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        FILE.write_text(json.dumps(record(Path(folder)), indent=2) + "\n")
