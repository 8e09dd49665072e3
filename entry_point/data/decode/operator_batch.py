"""Samples from the batch operator: one call decodes, crops, turns, resizes and flips them all."""

from __future__ import annotations

import torch
from torch import Tensor

from custom_op import (
    JpegError,
    Packed,
    decode_crop_resize_batch,
    decode_crop_resize_batch_masked,
)
from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.image_sizes import upright_sizes
from entry_point.data.decode.reading import is_packed, read_files
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.sources.source import Source
from entry_point.data.spans import span


def batch_images(
    source: Source, planner: CropPlanner, epoch: int, indices: Ints, allocate: Allocate
) -> tuple[Tensor, dict[int, str]]:
    """See MakeImages."""
    if is_packed(source):
        heights, widths = upright_sizes(source, [], indices)
        return decoded(source.packed(indices), planner, epoch, indices, heights, widths, allocate)
    files, unreadable = read_files(source, indices)
    heights, widths = upright_sizes(source, files, indices)
    images, damage = decoded(files, planner, epoch, indices, heights, widths, allocate)
    return images, damage | unreadable


def decoded(
    files: list[Tensor] | Packed,
    planner: CropPlanner,
    epoch: int,
    indices: Ints,
    heights: Ints,
    widths: Ints,
    allocate: Allocate,
) -> tuple[Tensor, dict[int, str]]:
    """As `batch_images`, of encoded images whose upright sizes are known."""
    side = planner.data.image_size
    with span("plan"):
        boxes, flips = planner.plan(epoch, indices, heights, widths)
    images = empty_images(allocate, len(indices), side)
    where, flip = torch.from_numpy(boxes), torch.from_numpy(flips)
    with span("decode_crop_resize_batch"):
        _, failed = decode_crop_resize_batch_masked(
            files,
            where,
            side,
            flip=flip,
            out=images,
            num_threads=1,
            color=planner.data.color,
        )
    places = failed.nonzero().flatten().tolist()
    return images, {i: _reason(_one(files, i), where[i : i + 1], side) for i in places}


def _one(files: list[Tensor] | Packed, place: int) -> list[Tensor] | Packed:
    if isinstance(files, list):
        return [files[place]]
    buffer, offsets, lengths = files
    return buffer, offsets[place : place + 1], lengths[place : place + 1]


def _reason(file: list[Tensor] | Packed, box: Tensor, side: int) -> str:
    try:
        decode_crop_resize_batch(file, box, side, num_threads=1)
    except JpegError as error:
        return str(error).removeprefix("image 0 of the batch: ")
    return "could not be decoded"
