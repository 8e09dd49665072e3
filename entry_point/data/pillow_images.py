"""Samples the way most training code makes them: Pillow decodes all, torchvision crops."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from entry_point.data.batch import empty_images
from entry_point.data.crops import CropPlanner
from entry_point.data.source import Source


def pillow_images(
    source: Source, planner: CropPlanner, epoch: int, indices: NDArray[np.int64]
) -> Tensor:
    """The samples' pixels: uint8 (N, 3, image_size, image_size), channels_last."""
    size = planner.data.image_size
    photos = [_open(source, int(index)) for index in indices]
    widths, heights = np.array([photo.size for photo in photos]).T
    boxes, flips = planner.plan(epoch, indices, heights, widths)
    images = empty_images(len(photos), size)
    for i, photo in enumerate(photos):
        sample = functional.resized_crop(
            photo, *boxes[i].tolist(), [size, size], InterpolationMode.BILINEAR
        )
        if flips[i]:
            sample = functional.hflip(sample)
        images[i] = functional.pil_to_tensor(sample)
    return images


def _open(source: Source, index: int) -> Image.Image:
    data = io.BytesIO(source.read(index).numpy().data)
    return ImageOps.exif_transpose(Image.open(data)).convert("RGB")
