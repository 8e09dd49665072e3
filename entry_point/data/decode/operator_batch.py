"""The batch operator: one call decodes, crops, turns, resizes, flips and augments all images."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

import custom_op
from custom_op import (
    DecodeOptions,
    JpegError,
    Packed,
    decode_crop_resize_batch,
    decode_crop_resize_batch_masked,
    decode_views_masked,
)
from entry_point.data.decode.allocation import Allocate, empty_views
from entry_point.data.decode.made_images import MadeImages
from entry_point.data.decode.read_batch import (
    is_packed,
    read_files,
    side_indexes,
    upright_sizes,
)
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.plan.views import Views
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
        planned = planner.views(epoch, indices, heights, widths)
    images = [empty_views(allocate, views) for views in planned]
    stale = torch.zeros(len(indices), dtype=torch.bool)
    options = DecodeOptions(
        indexes=side_indexes(source, indices),
        num_threads=1,
        color=planner.data.color,
        stale_indexes=stale,
    )
    with span("decode_crop_resize_batch"):
        failed = _decode(files, planned, images, options)
    damage = {i: _reason(files, planned, i) for i in failed.nonzero().flatten().tolist()}
    return MadeImages(images, damage, int(stale.sum()))


def _decode(
    files: list[Tensor] | Packed,
    planned: list[Views],
    images: list[Tensor],
    options: DecodeOptions,
) -> Tensor:
    """Fill `images`; which of them have failed, bool (N,)."""
    tensors = [
        custom_op.Views(
            torch.from_numpy(views.boxes),
            views.side,
            torch.from_numpy(views.flips),
            None if views.operations is None else torch.from_numpy(views.operations),
            out,
        )
        for views, out in zip(planned, images, strict=True)
    ]
    if len(tensors) > 1:
        return decode_views_masked(files, tensors, **options)[1]
    (only,) = tensors
    return decode_crop_resize_batch_masked(
        files, only.boxes, only.size, flip=only.flip, augment=only.augment, out=only.out, **options
    )[1]


def _reason(files: list[Tensor] | Packed, planned: list[Views], i: int) -> str:
    file = _only(files, i)
    reasons = (why_refused(file, torch.from_numpy(views.boxes[i : i + 1])) for views in planned)
    return next(filter(None, reasons), "")


def _only(files: list[Tensor] | Packed, i: int) -> list[Tensor] | Packed:
    if isinstance(files, list):
        return [files[i]]
    buffer, offsets, lengths = files
    return buffer, offsets[i : i + 1], lengths[i : i + 1]


def why_refused(file: list[Tensor] | Packed, box: Tensor) -> str:
    """Why the operator cannot decode one file's `box`, int64 (1, 4), or boxes, (1, V, 4).

    Empty if it can.
    """
    try:
        decode_crop_resize_batch(file, box, 1, num_threads=1)
    except JpegError as error:
        return str(error).removeprefix("image 0 of the batch: ")
    return ""
