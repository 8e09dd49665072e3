"""Views of several sizes of every image, as multi-crop training takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from custom_op.decode_batch import DecodeOptions, decode_into, empty_views
from custom_op.encoded_images import Packed
from custom_op.jpeg_errors import JpegError


@dataclass(frozen=True)
class Views:
    """V views of each of N images, of one size. See `decode_crop_resize_batch`."""

    boxes: Tensor
    """int64 `(N, V, 4)`: top, left, height, width."""
    size: int
    """Height and width of a view in pixels."""
    flip: Tensor | None = None
    """bool `(N, V)`. None: mirror none."""
    augment: Tensor | None = None
    """float32 `(N, V, K, 8)`. None: no operations."""
    out: Tensor | None = None
    """`(N, V, 3, size, size)`, contiguous or by pixel. None: a new uint8 tensor."""


def decode_views_masked(
    jpegs: Sequence[Tensor] | Packed, views: Sequence[Views], **options: Unpack[DecodeOptions]
) -> tuple[list[Tensor], Tensor]:
    """As `decode_crop_resize_batch_masked`, for views of several sizes (at least one).

    A file's headers, tables and index are read once for all of them.

    Returns:
        The views of each size, uint8 `(N, V, 3, size, size)` or as `out`; and bool `(N,)`: True
        for the images of which any view has failed, whose views are all zeros.

    Raises:
        JpegError: a tensor has the wrong dtype, shape or device.
        ValueError: as `decode_crop_resize_batch`.
    """
    outs = [
        empty_views(each.boxes, each.size, torch.uint8) if each.out is None else each.out
        for each in views
    ]
    for each, out in zip(views, outs, strict=True):
        if each.boxes.dim() != 3 or out.shape[-1] != each.size:
            raise JpegError(
                f"views of size {each.size} must have boxes (images, views, 4) and an out of that "
                f"size; got boxes {tuple(each.boxes.shape)} and out {tuple(out.shape)}"
            )
    boxes = torch.cat([each.boxes for each in views], 1)
    failed = decode_into(
        outs, jpegs, boxes, _flips(views), _operations(views), mask_errors=True, **options
    )
    return outs, failed


def _flips(views: Sequence[Views]) -> Tensor | None:
    if all(each.flip is None for each in views):
        return None
    given = [
        torch.zeros(each.boxes.shape[:2], dtype=torch.bool) if each.flip is None else each.flip
        for each in views
    ]
    return torch.cat(given, 1)


def _operations(views: Sequence[Views]) -> Tensor | None:
    """The tables of all views, filled up with the identity to the longest."""
    tables = [each.augment for each in views if each.augment is not None]
    if not tables:
        return None
    longest = max(table.shape[2] for table in tables)
    filled = []
    for each in views:
        rows = each.augment
        table = torch.zeros(*each.boxes.shape[:2], longest, tables[0].shape[3])
        if rows is not None:
            table[:, :, : rows.shape[2]] = rows
        filled.append(table)
    return torch.cat(filled, 1)
