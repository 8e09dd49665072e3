"""The pipelines that feed the stall workload, and their data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from benchmarks.operator.op_crop_skip import crop_skip
from benchmarks.sample_photographs import photographs
from custom_op import jpeg_headers
from entry_point.config.packing_config import OptimizeConfig
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.made_images import MadeImages, MakeImages
from entry_point.data.loader import Loader, build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.packing.pack import pack
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.sources.source import Source

IMAGES, BATCH = 512, 32
PILLOW = "Pillow + DataLoader, as published"
PUBLISHED = "crop + skip, as published (DataLoader workers)"
WORKERS = "this template (workers), transform on the CPU"
THREADS = "this template (threads), plain files"
# As published: the transform runs on the CPU, one sample at a time, on planar images.
_CPU = ("data.transform_on=cpu",)
CONTENDERS: Mapping[str, tuple[str, ...]] = {
    PILLOW: ("pipeline=pillow", *_CPU),
    PUBLISHED: ("pipeline=workers", *_CPU),
    WORKERS: ("pipeline=workers", *_CPU),
    THREADS: ("pipeline=threads",),
    "this template (threads), shards": ("pipeline=threads", "data.format=shards"),
}


def write_data(root: Path, images: int = IMAGES) -> None:
    """Write root/folder/train, 533x800 JPEGs of six photographs, and root/shards, packed."""
    files = photographs()
    for number in range(images):
        folder = root / "folder" / "train" / str(number % len(files))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(files[number % len(files)])
    pack(root / "folder", root / "shards", OptimizeConfig())


def settings(name: str, root: Path, model: str, device: str) -> TrainConfig:
    """The recipe of experiment=stall for one contender."""
    form = "shards" if "shards" in name else "folder"
    config, _ = load_train_config(
        [
            "experiment=stall",
            "data.format=folder",
            *CONTENDERS[name],
            f"data.root={root / form}",
            f"model.name={model}",
            f"trainer.device={device}",
            f"trainer.batch_size={BATCH}",
        ]
    )
    return config


def training_loader(
    config: TrainConfig, device: torch.device, make_images: MakeImages | None = None
) -> Loader:
    """The config's pipeline over the train split; `make_images` replaces its decoding."""
    data, pipeline, seed = config.data, config.pipeline, config.trainer.seed
    source = open_source(data, "train", Path())
    spec = LoaderSpec(data, pipeline, "train", config.trainer.batch_size, seed, device=device)
    return build_loader(source, spec, make_images)


def crop_skip_images(
    source: Source, planner: CropPlanner, epoch: int, indices: Ints, allocate: Allocate
) -> MadeImages:
    """Like entry_point.data.decode.operator_single, but with the published operator."""
    files = [source.read(int(index)) for index in indices]
    heights, widths, _ = jpeg_headers(files).numpy().T
    plan = planner.plan(epoch, indices, heights, widths)
    images = empty_images(allocate, (len(files),), plan.side)
    for image, file, box in zip(images, files, plan.boxes.tolist(), strict=True):
        image.copy_(crop_skip(file, *box))
    return MadeImages(images, {})


def glance(num_classes: int) -> nn.Module:
    """An almost free model: it reads one pixel in 16 by 16."""
    return nn.Sequential(
        nn.MaxPool2d(1, 16),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(48, num_classes),
    )
