"""Fake kernels: the shapes of the results, for tracing without data."""

# ruff: noqa: ARG001 - a fake kernel needs only some arguments of its operator

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import register_fake


def _check_bytes(data: Tensor) -> None:
    torch._check(data.dim() == 1, lambda: f"data must be a 1-D tensor; got {data.dim()} dimensions")
    torch._check(data.dtype == torch.uint8, lambda: f"data must be uint8; got {data.dtype}")


def _count(jpegs: list[Tensor], offsets: Tensor | None) -> int:
    for jpeg in jpegs:
        _check_bytes(jpeg)
    return len(jpegs) if offsets is None else offsets.shape[0]


def _check_shape(out: Tensor, expected: tuple[int, ...]) -> None:
    torch._check(
        out.shape == expected, lambda: f"out must have the shape {expected}; got {out.shape}"
    )


@register_fake("custom_op::decode_and_crop_jpeg")
def _decode_and_crop_jpeg(
    data: Tensor,
    crop_y: int,
    crop_x: int,
    crop_height: int,
    crop_width: int,
    *,
    index: Tensor | None,
    max_pixels: int,
) -> Tensor:
    _check_bytes(data)
    return data.new_empty((crop_height, crop_width, 3)).permute(2, 0, 1)


@register_fake("custom_op::jpeg_headers")
def _jpeg_headers(
    jpegs: list[Tensor], offsets: Tensor | None, lengths: Tensor | None, *, mask_errors: bool
) -> Tensor:
    return jpegs[0].new_empty((_count(jpegs, offsets), 3), dtype=torch.int64)


@register_fake("custom_op::jpeg_warnings")
def _jpeg_warnings(data: Tensor, *, max_pixels: int) -> int:
    _check_bytes(data)
    return torch.library.get_ctx().new_dynamic_size(min=0)  # type: ignore[return-value]


@register_fake("custom_op::index_jpeg")
def _index_jpeg(data: Tensor, interval: int, *, max_pixels: int) -> Tensor:
    _check_bytes(data)
    return data.new_empty(torch.library.get_ctx().new_dynamic_size())


@register_fake("custom_op::to_baseline")
def _to_baseline(data: Tensor, *, max_pixels: int) -> Tensor:
    _check_bytes(data)
    return data.new_empty(torch.library.get_ctx().new_dynamic_size())


@register_fake("custom_op::decode_crop_resize_batch")
def _decode_crop_resize_batch(
    jpegs: list[Tensor],
    offsets: Tensor | None,
    lengths: Tensor | None,
    boxes: Tensor,
    *,
    indexes: list[Tensor],
    index_offsets: Tensor | None,
    index_lengths: Tensor | None,
    flip: Tensor | None,
    affine: Tensor,
    mask_errors: bool,
    apply_orientation: bool,
    ycbcr: bool,
    max_pixels: int,
    num_threads: int,
    outs: list[Tensor],
    augment: Tensor | None = None,
    stale_indexes: Tensor | None = None,
) -> Tensor:
    count = _count(jpegs, offsets)
    for out in outs:
        views = out.shape[1:2] if boxes.dim() == 3 else ()
        _check_shape(out, (count, *views, 3, out.shape[-1], out.shape[-1]))
    return boxes.new_empty(count, dtype=torch.bool)
