"""Fake kernels: the shapes of the results, for tracing without data."""

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


@register_fake("custom_op::decode_and_crop_jpeg")
def _decode_and_crop_jpeg(
    data: Tensor,
    crop_y: int,  # noqa: ARG001
    crop_x: int,  # noqa: ARG001
    crop_height: int,
    crop_width: int,
    *,
    max_pixels: int,  # noqa: ARG001
) -> Tensor:
    _check_bytes(data)
    return data.new_empty((crop_height, crop_width, 3)).permute(2, 0, 1)


@register_fake("custom_op::jpeg_headers")
def _jpeg_headers(
    jpegs: list[Tensor],
    offsets: Tensor | None,
    lengths: Tensor | None,  # noqa: ARG001
) -> Tensor:
    return jpegs[0].new_empty((_count(jpegs, offsets), 3), dtype=torch.int64)


@register_fake("custom_op::jpeg_size")
def _jpeg_size(data: Tensor) -> tuple[int, int]:
    _check_bytes(data)
    context = torch.library.get_ctx()
    return context.new_dynamic_size(min=1), context.new_dynamic_size(min=1)  # type: ignore[return-value]


@register_fake("custom_op::jpeg_orientation")
def _jpeg_orientation(data: Tensor) -> int:
    _check_bytes(data)
    return torch.library.get_ctx().new_dynamic_size(min=1, max=8)  # type: ignore[return-value]


@register_fake("custom_op::add_restart_markers")
def _add_restart_markers(
    data: Tensor,
    interval: int,  # noqa: ARG001
    *,
    max_pixels: int,  # noqa: ARG001
) -> Tensor:
    _check_bytes(data)
    return data.new_empty(torch.library.get_ctx().new_dynamic_size())


@register_fake("custom_op::trim_jpeg")
def _trim_jpeg(
    data: Tensor,
    top: int,  # noqa: ARG001
    left: int,  # noqa: ARG001
    height: int,  # noqa: ARG001
    width: int,  # noqa: ARG001
) -> tuple[Tensor, int, int]:
    _check_bytes(data)
    context = torch.library.get_ctx()
    jpeg = data.new_empty(context.new_dynamic_size())
    return jpeg, context.new_dynamic_size(), context.new_dynamic_size()  # type: ignore[return-value]


@register_fake("custom_op::decode_crop_resize_batch")
def _decode_crop_resize_batch(
    jpegs: list[Tensor],
    offsets: Tensor | None,
    lengths: Tensor | None,  # noqa: ARG001
    boxes: Tensor,
    size: int,
    *,
    flip: Tensor | None,  # noqa: ARG001
    affine: Tensor,  # noqa: ARG001
    mask_errors: bool,  # noqa: ARG001
    apply_orientation: bool,  # noqa: ARG001
    scaled_decode: bool,  # noqa: ARG001
    ycbcr: bool,  # noqa: ARG001
    max_pixels: int,  # noqa: ARG001
    num_threads: int,  # noqa: ARG001
    out: Tensor,
) -> Tensor:
    count = _count(jpegs, offsets)
    expected = (count, 3, size, size)
    torch._check(
        out.shape == expected, lambda: f"out must have the shape {expected}; got {out.shape}"
    )
    return boxes.new_empty(count, dtype=torch.bool)
