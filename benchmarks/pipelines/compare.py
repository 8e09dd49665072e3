"""Whether other loaders deliver the images and labels that they are given.

Each delivered image counts as the photograph that it resembles most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms.v2.functional import resize

from benchmarks.measure import table
from benchmarks.pipelines.peers import PeerLoader
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.loader_spec import LoaderSpec

BATCHES = 4
MOST = 8.0
"""Mean difference of an image, in levels of 255: TurboLoader decodes at a reduced scale."""
COMPARISON = (
    "Before they are timed, other loaders deliver whole photographs, which are compared with a "
    "full decode that torchvision resizes with antialiasing, in levels of 255. A loader with a "
    f"wrong label, or an image that differs by more than {MOST:g} on average, is not timed:\n"
)


@dataclass(frozen=True)
class Compared:
    wrong_labels: int
    """Number of the `images` with another label."""
    images: int
    differences: Tensor
    """Mean difference of each image over its pixels, in levels of 255."""
    largest: float
    """Largest difference of a pixel."""

    @property
    def agrees(self) -> bool:
        return not self.wrong_labels and bool(self.differences.max() <= MOST)


def references(files: Path, image_size: int) -> tuple[Tensor, Tensor]:
    """Returns the photographs as stored and turned by EXIF, which only some loaders do: uint8
    (2 * N, 3, image_size, image_size), and their classes."""
    images, labels = [], []
    for file, label in ImageFolder(str(files / "train")).samples:
        for turned in (False, True):
            pixels = decode_image(file, ImageReadMode.RGB, apply_exif_orientation=turned)
            images.append(resize(pixels, [image_size, image_size]))
            labels.append(label)
    return torch.stack(images), torch.tensor(labels)


def compare(name: str, root: Path, batch_size: int, reference: tuple[Tensor, Tensor]) -> Compared:
    """Compares the first batches of a peer, which reads `root`."""
    images, labels = reference
    # Crops are whole photographs.
    data = DataConfig(image_size=images.shape[-1], scale=[1, 1], ratio=[0.01, 100], hflip=0)
    spec = LoaderSpec(data, PipelineConfig("threads", num_workers=2), "train", batch_size, seed=0)
    loader = PeerLoader(name, root, spec, BATCHES)
    thumbnails = torch.cat([_thumbnails(some) for some in images.split(256)])
    wrong, differences, largest = 0, [], 0.0
    for batch in loader.epoch(0):
        pixels = _levels(batch.images, data)
        nearest = torch.cdist(_thumbnails(pixels), thumbnails).argmin(1)
        wrong += int((labels[nearest] != batch.labels).sum())
        apart = (pixels - images[nearest]).abs()
        differences.append(apart.mean((1, 2, 3)))
        largest = max(largest, float(apart.max()))
    loader.close()
    found = torch.cat(differences)
    return Compared(wrong, len(found), found, largest)


def compared_table(found: Mapping[str, Compared]) -> str:
    """Returns what was compared, and which loaders are not timed."""
    rows = [
        [
            way,
            f"{one.images - one.wrong_labels} of {one.images}",
            f"{one.differences.mean():.2f}",
            f"{one.differences.max():.2f}",
            f"{one.largest:.0f}",
            "yes" if one.agrees else "NO",
        ]
        for way, one in found.items()
    ]
    head = ["loader", "labels right", "mean difference", "that of the worst image", "largest"]
    return table([*head, "timed"], rows)


def _levels(images: Tensor, data: DataConfig) -> Tensor:
    """Returns float32 images from 0 to 255."""
    if not images.is_floating_point():
        return images.float()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in data.normalization)
    return 255 * (images * std + mean)


def _thumbnails(images: Tensor) -> Tensor:
    return adaptive_avg_pool2d(images.float(), 8).flatten(1)
