"""The batch operator: one call decodes, crops, turns, resizes, flips and augments all images."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from custom_op import (
    JpegError,
    Packed,
    decode_crop_resize_batch,
    decode_crop_resize_batch_masked,
)
from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.made_images import MadeImages
from entry_point.data.decode.read_batch import (
    is_packed,
    read_files,
    side_indexes,
    upright_sizes,
)
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.sources.file_source import FileSource
from entry_point.data.sources.source import Source
from entry_point.data.spans import span


def operator_batch_images(
    source: Source, planner: CropPlanner, epoch: int, indices: Ints, allocate: Allocate
) -> MadeImages:
    """See MakeImages."""
    if is_packed(source):
        return decode_jpegs(source.packed(indices), source, planner, epoch, indices, allocate)
    files, unreadable = read_files(source, indices)
    made = decode_jpegs(files, source, planner, epoch, indices, allocate)
    return replace(made, damage=made.damage | unreadable)


def decode_jpegs(
    files: list[Tensor] | Packed,
    source: Source,
    planner: CropPlanner,
    epoch: int,
    indices: Ints,
    allocate: Allocate,
) -> MadeImages:
    """As MakeImages, from the encoded images of `indices`."""
    heights, widths = upright_sizes(source, files, indices)
    with span("plan"):
        plan = planner.plan(epoch, indices, heights, widths)
    images = empty_images(allocate, plan.flips.shape, plan.side)
    boxes = torch.from_numpy(plan.boxes)
    stale = torch.zeros(len(indices), dtype=torch.bool)
    keeper = source if isinstance(source, FileSource) and source.index_cache else None
    made: list[Tensor] | None = None if keeper is None else []
    with span("decode_crop_resize_batch"):
        _, failed = decode_crop_resize_batch_masked(
            files,
            boxes,
            plan.side,
            indexes=side_indexes(source, indices),
            flip=torch.from_numpy(plan.flips),
            augment=None if plan.operations is None else torch.from_numpy(plan.operations),
            out=images,
            num_threads=1,
            stale_indexes=stale,
            new_indexes=made,
        )
    if keeper is not None and made:
        keeper.keep_indexes(indices, made)
        stale.zero_()  # those of changed files are replaced
    positions = failed.nonzero().flatten().tolist()
    damage = {i: why_refused(_only(files, i), boxes[i : i + 1]) for i in positions}
    return MadeImages(images, damage, int(stale.sum()))


def _only(files: list[Tensor] | Packed, i: int) -> list[Tensor] | Packed:
    if isinstance(files, list):
        return [files[i]]
    buffer, spans = files
    return buffer, spans[i : i + 1]


def why_refused(file: list[Tensor] | Packed, box: Tensor) -> str:
    """Why the operator cannot decode one file's `box`, int64 (1, 4), or boxes, (1, V, 4).

    Empty if it can.
    """
    try:
        decode_crop_resize_batch(file, box, 1, num_threads=1)
    except JpegError as error:
        return str(error).removeprefix("image 0 of the batch: ")
    return ""
