"""Samples from the batch operator: one call decodes, crops, turns, resizes and flips them all."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_op import JpegError, decode_crop_resize_batch
from entry_point.data.batch import empty_images
from entry_point.data.crops import CropPlanner
from entry_point.data.jpeg_sizes import upright_sizes
from entry_point.data.source import Source
from entry_point.data.spans import span


def batch_images(
    source: Source, planner: CropPlanner, epoch: int, indices: NDArray[np.int64]
) -> tuple[Tensor, dict[int, str]]:
    """Pixels, uint8 (N, 3, image_size, image_size), and why those at some places are missing."""
    side = planner.data.image_size
    with span("read"):
        files = [source.read(int(index)) for index in indices]
    heights, widths = upright_sizes(source, files, indices)
    boxes, flips = planner.plan(epoch, indices, heights, widths)
    images = empty_images(len(files), side)
    where, flip = torch.from_numpy(boxes), torch.from_numpy(flips)
    with span("decode_crop_resize_batch"):
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


def _reason(file: Tensor, box: Tensor, side: int) -> str:
    try:
        decode_crop_resize_batch([file], box, side, num_threads=1)
    except JpegError as error:
        return str(error).removeprefix("image 0 of the batch: ")
    return "could not be decoded"
