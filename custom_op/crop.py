"""Decoding one crop of one JPEG."""

from __future__ import annotations

import torch
from torch import Tensor

from custom_op.jpeg_errors import raising_jpeg_error
from custom_op.load import load

MAX_PIXELS = 178_956_970
"""Default of `max_pixels`: the limit above which Pillow raises DecompressionBombError."""


def decode_and_crop_jpeg(
    data: Tensor,
    crop_y: int,
    crop_x: int,
    crop_height: int,
    crop_width: int,
    *,
    index: Tensor | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Tensor:
    """Decodes the pixels of one crop, bit-identical to decoding the whole image and cropping it.

    Args:
        data: uint8 `(bytes,)` on the CPU, one encoded JPEG. Baseline, progressive or arithmetic
            coding; color, grayscale (returned as three equal channels) or CMYK.
        crop_y, crop_x: top and left edge, in stored pixels (before any EXIF rotation).
        crop_height, crop_width: size of the crop; the box must lie inside the image.
        index: what `index_jpeg` returned for the same file, so that decoding starts near the crop.
            The index of another file, or of an earlier version of it, is ignored.
        max_pixels: an image with more pixels raises JpegError.

    Returns:
        uint8 `(3, crop_height, crop_width)`, RGB, with channels_last strides.

    Raises:
        JpegError: the data is not a JPEG, truncated, damaged or not supported; or the box is
            outside the image.
    """
    load()
    with raising_jpeg_error():
        return torch.ops.custom_op.decode_and_crop_jpeg.default(
            data, crop_y, crop_x, crop_height, crop_width, index=index, max_pixels=max_pixels
        )
