"""Whose pipelines feed the stall workload's step, and what they read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.operator.op_crop_skip import crop_skip
from benchmarks.operator.op_photographs import photographs
from custom_op import jpeg_headers
from entry_point.config.packing_config import OptimizeConfig
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.stall import SampleBySample
from entry_point.data.loader import Loader, build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.packing.pack import pack
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.sources.source import Source

IMAGES, BATCH = 512, 32
PUBLISHED = "crop + skip as published, workers"
# As published: samples one by one on the CPU, planes of colour; ours: pixels of three channels.
_CPU = ("data.transform_on=cpu", "trainer.channels_last=false")
CONTENDERS: Mapping[str, tuple[str, ...]] = {
    "pillow, as published": ("pipeline=pillow", *_CPU),
    PUBLISHED: ("pipeline=workers", *_CPU),
    "workers, as published": ("pipeline=workers", *_CPU),
    "ours: threads, plain files": ("pipeline=threads",),
    "ours: threads, indexed shards": ("pipeline=threads", "data.format=shards"),
}


def write_data(root: Path, images: int = IMAGES) -> None:
    """root/folder/train: photographs of 533x800 pixels; root/shards: the same, packed.

    As many files as there are images, of six photographs; reading them is reading from memory.
    """
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


def training_loader(name: str, config: TrainConfig) -> Loader:
    """The contender's pipeline over the train split."""
    data, pipeline, seed = config.data, config.pipeline, config.trainer.seed
    source = open_source(data, "train", Path())
    device = torch.device(config.trainer.device)
    spec = LoaderSpec(data, pipeline, "train", BATCH, seed, device=device)
    published = SampleBySample(crop_skip_images) if name == PUBLISHED else None
    return build_loader(source, spec, published)


def crop_skip_images(
    source: Source, planner: CropPlanner, epoch: int, indices: Ints, allocate: Allocate
) -> tuple[Tensor, dict[int, str]]:
    """Like entry_point.data.decode.operator_single, with the published operator."""
    files = [source.read(int(index)) for index in indices]
    heights, widths, _ = jpeg_headers(files).numpy().T
    boxes, _ = planner.plan(epoch, indices, heights, widths)
    images = empty_images(allocate, len(files), planner.data.image_size)
    for image, file, box in zip(images, files, boxes.tolist(), strict=True):
        image.copy_(crop_skip(file, *box))
    return images, {}


def glance(num_classes: int) -> torch.nn.Module:
    """A model that costs next to nothing: it looks at one pixel in 16 by 16."""
    return torch.nn.Sequential(
        torch.nn.MaxPool2d(1, stride=16),
        torch.nn.Flatten(),
        torch.nn.Linear(3 * 16 * 16, num_classes),
    )
