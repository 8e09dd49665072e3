"""timm's training loader, with the operator instead of Pillow.

    python -m examples.timm_loader data/demo/train

timm's own transforms decode and crop with Pillow in each worker. Here a worker decodes the crops of
a batch in one call. What timm does to batches on the device stays: normalizing, random erasing.
timm leaves out the last, incomplete batch: of fewer than 32 images, it makes none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np
import torch
from timm.data.loader import create_loader
from torch import Tensor
from torchvision.datasets import ImageFolder

from examples.random_crop import decode_random_crops


class JpegFolder(ImageFolder):
    """Returns the bytes of an image and its label."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        # create_loader sets `transform` to timm's own, which this ignores.
        path, label = self.samples[index]
        return torch.from_numpy(np.fromfile(path, np.uint8)), label


def collate(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Turn N samples into uint8 `(N, 3, 224, 224)` images and int64 `(N,)` labels."""
    images = decode_random_crops([jpeg for jpeg, _ in samples], 224)
    return images, torch.tensor([label for _, label in samples])


def train_loader(root: str, device: torch.device) -> Iterable[tuple[Tensor, Tensor]]:
    """Return a loader of normalized float batches on the device."""
    loader: Iterable[tuple[Tensor, Tensor]] = create_loader(
        JpegFolder(root),
        input_size=(3, 224, 224),
        batch_size=32,
        is_training=True,
        re_prob=0.25,
        num_workers=2,
        collate_fn=collate,
        device=device,
    )
    return loader


def main(root: str) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for images, labels in train_loader(root, device):
        sys.stdout.write(f"{tuple(images.shape)} {images.dtype} {tuple(labels.shape)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
