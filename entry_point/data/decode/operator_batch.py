"""The batch operator: one call decodes, crops, turns, resizes, flips and augments all images."""

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
from entry_point.data.decode.read_batch import (
    is_packed,
    read_files,
    side_indexes,
    upright_sizes,
)
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.sources.source import Source
from entry_point.data.spans import span


def operator_batch_images(
    source: Source, planner: CropPlanner, epoch: int, indices: Ints, allocate: Allocate
) -> tuple[Tensor, dict[int, str]]:
    """See MakeImages."""
    if is_packed(source):
        return decode_jpegs(source.packed(indices), source, planner, epoch, indices, allocate)
    files, unreadable = read_files(source, indices)
    images, damage = decode_jpegs(files, source, planner, epoch, indices, allocate)
    return images, damage | unreadable


def decode_jpegs(
    files: list[Tensor] | Packed,
    source: Source,
    planner: CropPlanner,
    epoch: int,
    indices: Ints,
    allocate: Allocate,
) -> tuple[Tensor, dict[int, str]]:
    """As MakeImages, from the encoded images of `indices`."""
    side = planner.side(epoch)
    heights, widths = upright_sizes(source, files, indices)
    with span("plan"):
        boxes, flips = planner.plan(epoch, indices, heights, widths)
        operations = planner.augmentation(epoch, indices)
    images, box = empty_images(allocate, len(indices), side), torch.from_numpy(boxes)
    with span("decode_crop_resize_batch"):
        _, failed = decode_crop_resize_batch_masked(
            files,
            box,
            side,
            indexes=side_indexes(source, indices),
            flip=torch.from_numpy(flips),
            out=images,
            num_threads=1,
            color=planner.data.color,
            fast_color=planner.train and planner.data.fast_color,
            augment=None if operations is None else torch.from_numpy(operations),
        )
    damaged = failed.nonzero().flatten().tolist()
    return images, {i: why_refused(_only(files, i), box[i : i + 1]) for i in damaged}


def _only(files: list[Tensor] | Packed, i: int) -> list[Tensor] | Packed:
    if isinstance(files, list):
        return [files[i]]
    buffer, offsets, lengths = files
    return buffer, offsets[i : i + 1], lengths[i : i + 1]


def why_refused(file: list[Tensor] | Packed, box: Tensor) -> str:
    """Why the operator cannot decode `box`, int64 (1, 4), of one file; empty if it can."""
    try:
        decode_crop_resize_batch(file, box, 1, num_threads=1)
    except JpegError as error:
        return str(error).removeprefix("image 0 of the batch: ")
    return ""
