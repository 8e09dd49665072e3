"""The operators' shapes, for tracing without data."""

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
    crop_y: int,  # noqa: ARG001
    crop_x: int,  # noqa: ARG001
    crop_height: int,
    crop_width: int,
    *,
    max_pixels: int,  # noqa: ARG001
) -> Tensor:
    _check_bytes(data)
    return data.new_empty((crop_height, crop_width, 3)).permute(2, 0, 1)


@register_fake("custom_op::jpeg_size")
def _jpeg_size(data: Tensor) -> tuple[int, int]:
    _check_bytes(data)
    context = torch.library.get_ctx()
    return context.new_dynamic_size(min=1), context.new_dynamic_size(min=1)  # type: ignore[return-value]


@register_fake("custom_op::jpeg_orientation")
def _jpeg_orientation(data: Tensor) -> int:
    _check_bytes(data)
    return torch.library.get_ctx().new_dynamic_size(min=1, max=8)  # type: ignore[return-value]
