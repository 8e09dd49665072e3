"""Restart markers: written into a file once, offline; used to cut a crop out of it."""

from __future__ import annotations

import torch
from torch import Tensor

from custom_op.crop import MAX_PIXELS
from custom_op.jpeg_errors import JpegError, NotIndexableError, raising_jpeg_error
from custom_op.load import load

_NOT_INDEXABLE = "not indexable: "


def add_restart_markers(data: Tensor, interval: int, *, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Writes a JPEG again with restart markers, without loss, so that crops decode faster.

    The coefficients stay as they are; Huffman tables are optimised, which mostly pays for the
    markers; progressive files become baseline. EXIF, ICC and other segments are kept. Before it is
    returned, the result is decoded and compared with the original.

    Args:
        data: uint8 `(bytes,)`, one encoded JPEG.
        interval: wanted MCUs between markers. The largest divisor of the MCUs per row that is at
            most `interval` is used, and one marker per row when that is 1.
        max_pixels: images of more pixels are refused.

    Raises:
        NotIndexableError: the file is damaged, not supported or not the same when written again;
            keep the original.
        JpegError: `interval` is less than 1.
    """
    load()
    try:
        return torch.ops.custom_op.add_restart_markers.default(
            data, interval, max_pixels=max_pixels
        )
    except RuntimeError as error:
        message = str(error)
        if message.startswith(_NOT_INDEXABLE):
            raise NotIndexableError(message.removeprefix(_NOT_INDEXABLE)) from None
        raise JpegError(message) from None


def trim_jpeg(
    data: Tensor, top: int, left: int, height: int, width: int
) -> tuple[Tensor, tuple[int, int]]:
    """Cuts the crop and its margins out of a file with restart markers, by copying bytes alone.

    The result is a small JPEG for any decoder: nvJPEG, a browser. Decoded, the crop's pixels in it
    are those of the whole image. A file without usable markers comes back whole. What is cut out
    has no metadata: boxes and pixels are as stored, and no EXIF orientation follows them.

    Args:
        data: uint8 `(bytes,)`, one encoded JPEG.
        top, left, height, width: the crop, in stored pixels; it must lie inside the image.

    Returns:
        The small JPEG, uint8 `(bytes,)`, and the crop's `(top, left)` in it.

    Raises:
        JpegError: not a JPEG, or the box is not inside the image.
    """
    load()
    with raising_jpeg_error():
        jpeg, crop_top, crop_left = torch.ops.custom_op.trim_jpeg.default(
            data, top, left, height, width
        )
    return jpeg, (crop_top, crop_left)
