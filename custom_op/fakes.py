"""Fake kernels: the shapes of the results, for tracing without data."""

# ruff: noqa: ARG001 - a fake kernel needs only some arguments of its operator

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import register_fake


def _check_bytes(data: Tensor) -> None:
    torch._check(data.dim() == 1, lambda: f"data must be a 1-D tensor; got {data.dim()} dimensions")
    torch._check(data.dtype == torch.uint8, lambda: f"data must be uint8; got {data.dtype}")


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
def _jpeg_headers(jpegs: list[Tensor], *, mask_errors: bool) -> Tensor:
    for jpeg in jpegs:
        _check_bytes(jpeg)
    return jpegs[0].new_empty((len(jpegs), 3), dtype=torch.int64)


@register_fake("custom_op::index_jpeg")
def _index_jpeg(data: Tensor, *, max_share: float, max_pixels: int) -> Tensor:
    _check_bytes(data)
    return data.new_empty(torch.library.get_ctx().new_dynamic_size())


@register_fake("custom_op::to_baseline")
def _to_baseline(data: Tensor, *, max_pixels: int) -> Tensor:
    _check_bytes(data)
    return data.new_empty(torch.library.get_ctx().new_dynamic_size())


@register_fake("custom_op::decode_crop_resize_batch")
def _decode_crop_resize_batch(
    jpegs: list[Tensor],
    boxes: Tensor,
    out: Tensor,
    *,
    indexes: list[Tensor],
    flip: Tensor | None,
    augment: Tensor | None,
    affine: Tensor,
    max_pixels: int,
    num_threads: int,
    mask_errors: bool,
    index_share: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    for jpeg in jpegs:
        _check_bytes(jpeg)
    shape = (len(jpegs), *boxes.shape[1:-1], 3, out.shape[-1], out.shape[-1])
    torch._check(out.shape == shape, lambda: f"out must have the shape {shape}; got {out.shape}")
    new_indexes = boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.uint8)
    lengths = boxes.new_empty(shape[0] if index_share > 0 else 0)
    failed, stale = (boxes.new_empty(shape[0], dtype=torch.bool) for _ in range(2))
    return failed, stale, new_indexes, lengths
