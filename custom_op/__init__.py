"""Decodes only the pixels a crop needs: a torch operator on libjpeg-turbo, compiled on first use."""

from custom_op.crop import MAX_PIXELS, decode_and_crop_jpeg, jpeg_orientation, jpeg_size
from custom_op.errors import JpegError, NotIndexableError
from custom_op.load import build_info, load
from custom_op.toolchain import BuildError

__all__ = [
    "MAX_PIXELS",
    "BuildError",
    "JpegError",
    "NotIndexableError",
    "build_info",
    "decode_and_crop_jpeg",
    "jpeg_orientation",
    "jpeg_size",
    "load",
]
