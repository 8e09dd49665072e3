"""Decoding one crop of one JPEG."""

from __future__ import annotations

import torch
from torch import Tensor

from custom_op.jpeg_errors import JpegError
from custom_op.load import load

MAX_PIXELS = 178_956_970
"""Larger images are refused: the limit at which Pillow suspects a decompression bomb."""


def decode_and_crop_jpeg(
    data: Tensor,
    crop_y: int,
    crop_x: int,
    crop_height: int,
    crop_width: int,
    *,
    max_pixels: int = MAX_PIXELS,
) -> Tensor:
    """Decodes the pixels of one crop, bit-identical to decoding the image and cropping it.

    Args:
        data: uint8 `(bytes,)` on the CPU, one encoded JPEG. Baseline, progressive or arithmetic
            coding; colour, grey (returned as three equal channels) or CMYK.
        crop_y, crop_x: top and left edge, in stored pixels (before any EXIF rotation).
        crop_height, crop_width: the crop's size; the box must lie inside the image.
        max_pixels: images of more pixels are refused.

    Returns:
        uint8 `(3, crop_height, crop_width)`, RGB, laid out pixel by pixel (channels last).

    Raises:
        JpegError: not a JPEG, truncated, damaged or not supported; box outside the image.
    """
    load()
    try:
        return torch.ops.custom_op.decode_and_crop_jpeg.default(
            data, crop_y, crop_x, crop_height, crop_width, max_pixels=max_pixels
        )
    except RuntimeError as error:
        raise JpegError(str(error)) from None


def jpeg_size(data: Tensor) -> tuple[int, int]:
    """The stored `(height, width)` of an encoded JPEG, from its header. Raises JpegError."""
    load()
    try:
        return torch.ops.custom_op.jpeg_size.default(data)
    except RuntimeError as error:
        raise JpegError(str(error)) from None


def jpeg_orientation(data: Tensor) -> int:
    """The EXIF orientation, 1 ... 8; 1 when the file does not say. Raises JpegError."""
    load()
    try:
        return torch.ops.custom_op.jpeg_orientation.default(data)
    except RuntimeError as error:
        raise JpegError(str(error)) from None
