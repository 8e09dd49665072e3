"""Samples from the batch operator: one call decodes, crops, turns, resizes and flips them all."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_op import JpegError, decode_crop_resize_batch, jpeg_orientation, jpeg_size
from entry_point.data.batch import empty_images
from entry_point.data.crops import CropPlanner
from entry_point.data.orientation import upright_size
from entry_point.data.source import Source


def batch_images(
    source: Source, planner: CropPlanner, epoch: int, indices: NDArray[np.int64]
) -> tuple[Tensor, dict[int, str]]:
    """Pixels, uint8 (N, 3, image_size, image_size), and why those at some places are missing."""
    side = planner.data.image_size
    files = [source.read(int(index)) for index in indices]
    if source.sizes is None:
        heights, widths = np.array([_upright_size(file) for file in files]).T
    else:
        heights, widths = source.sizes.heights[indices], source.sizes.widths[indices]
    boxes, flips = planner.plan(epoch, indices, heights, widths)
    images = empty_images(len(files), side)
    where, flip = torch.from_numpy(boxes), torch.from_numpy(flips)
    _, failed = decode_crop_resize_batch(
        files,
        where,
        side,
        flip=flip,
        out=images,
        on_error="mask",
        num_threads=1,
        color=planner.data.color,
    )
    damage = {int(i): _reason(files[i], where[i : i + 1], side) for i in failed.nonzero().flatten()}
    return images, damage


def _upright_size(file: Tensor) -> tuple[int, int]:
    """Upright height and width; 1 x 1 for a file whose header the operator will refuse too."""
    try:
        return upright_size(*jpeg_size(file), jpeg_orientation(file))
    except JpegError:
        return 1, 1


def _reason(file: Tensor, box: Tensor, side: int) -> str:
    try:
        decode_crop_resize_batch([file], box, side, num_threads=1)
    except JpegError as error:
        return str(error).removeprefix("image 0 of the batch: ")
    return "could not be decoded"
