"""The pipelines that feed the stall workload, and their data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.operator.op_crop_skip import crop_skip
from benchmarks.sample_photographs import photographs, write_classes
from custom_op import jpeg_headers
from entry_point.config.packing_config import OptimizeConfig
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.decode import BatchDecoder
from entry_point.data.loader import Loader, build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.packing.pack import pack
from entry_point.data.plan.crops import CropPlan
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.source import Encoded

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
    config: TrainConfig, device: torch.device, decoder: BatchDecoder | None = None
) -> Loader:
    """Returns the config's pipeline over the train split; `decoder` replaces its own."""
    data, pipeline, seed = config.data, config.pipeline, config.trainer.seed
    source = open_source(data, "train", Path())
    size, augment = config.trainer.batch_size, config.augment
    spec = LoaderSpec(data, pipeline, "train", size, seed, device=device, augment=augment)
    return build_loader(source, spec, decoder)


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
