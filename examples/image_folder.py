"""torchvision's ImageFolder, with decoding as the first transform.

    python -m examples.image_folder data/demo/train

By default, ImageFolder decodes the whole image before any transform. Here it returns the bytes.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from examples.random_crop import decode_random_crops

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read_file(path: str) -> Tensor:
    """Return the file's bytes, uint8 `(bytes,)`."""
    return torch.from_numpy(np.fromfile(path, np.uint8))


class DecodeRandomResizedCrop:
    """Takes the place of decoding, v2.RandomResizedCrop and v2.RandomHorizontalFlip."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, jpeg: Tensor) -> Tensor:
        """Turn a file's bytes into a uint8 `(3, size, size)` image."""
        return decode_random_crops([jpeg], self.size)[0]


def train_loader(root: str, batch_size: int = 32, workers: int = 2) -> DataLoader[object]:
    """Return a DataLoader of float `(N, 3, 224, 224)` images and int64 `(N,)` labels."""
    transform = v2.Compose(
        [
            DecodeRandomResizedCrop(224),
            # Any other transform of v2 that takes tensors goes here.
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    dataset = ImageFolder(root, transform, loader=read_file)
    return DataLoader(dataset, batch_size, shuffle=True, num_workers=workers)


def main(root: str) -> None:
    for images, labels in train_loader(root):
        sys.stdout.write(f"{tuple(images.shape)} {images.dtype} {tuple(labels.shape)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
