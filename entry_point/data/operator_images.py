"""Samples from the per-image operator: only the crop is decoded, then torch resizes it."""

from __future__ import annotations

import numpy as np
from custom_op import decode_and_crop_jpeg, jpeg_orientation, jpeg_size
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.v2 import functional

from entry_point.data.batch import empty_images
from entry_point.data.crops import CropPlanner
from entry_point.data.orientation import stored_box, upright, upright_size
from entry_point.data.source import Source


def operator_images(
    source: Source, planner: CropPlanner, epoch: int, indices: NDArray[np.int64]
) -> Tensor:
    """The samples' pixels: uint8 (N, 3, image_size, image_size), channels_last."""
    side = planner.data.image_size
    files = [source.read(int(index)) for index in indices]
    turns = [jpeg_orientation(file) for file in files]
    stored = [jpeg_size(file) for file in files]
    sizes = [upright_size(*size, turn) for size, turn in zip(stored, turns, strict=True)]
    heights, widths = np.array(sizes).T
    boxes, flips = planner.plan(epoch, indices, heights, widths)
    images = empty_images(len(files), side)
    for i, (file, turn) in enumerate(zip(files, turns, strict=True)):
        crop = decode_and_crop_jpeg(file, *stored_box(boxes[i].tolist(), *sizes[i], turn))
        sample = functional.resize(upright(crop, turn), [side, side], antialias=True)
        images[i] = functional.hflip(sample) if flips[i] else sample
    return images
