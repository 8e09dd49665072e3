"""Torch operators on libjpeg-turbo that decode only the pixels of a crop. Built on first use."""

from custom_op.compiler import BuildError
from custom_op.load import build_info, load
from custom_op.ops import (
    MAX_PIXELS,
    DecodedBatch,
    JpegError,
    decode_and_crop_jpeg,
    decode_crop_resize_batch,
    index_jpeg,
    jpeg_headers,
    jpeg_size,
    to_baseline,
)

__all__ = [
    "MAX_PIXELS",
    "BuildError",
    "DecodedBatch",
    "JpegError",
    "build_info",
    "decode_and_crop_jpeg",
    "decode_crop_resize_batch",
    "index_jpeg",
    "jpeg_headers",
    "jpeg_size",
    "load",
    "to_baseline",
]
