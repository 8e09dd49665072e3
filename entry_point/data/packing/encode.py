"""One source file becomes one restart-indexed JPEG, or the reason why it does not."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from custom_op import (
    JpegError,
    NotIndexableError,
    add_restart_markers,
    decode_and_crop_jpeg,
    jpeg_orientation,
    jpeg_size,
)
from entry_point.data.jpeg_header import restart_interval
from entry_point.data.packing.config import OptimizeConfig
from entry_point.data.packing.listing import IMAGE_SUFFIXES

_JPEG_START = b"\xff\xd8\xff"
_ORIENTATION_TAG = 0x0112


class RejectedError(Exception):
    """A file that cannot be packed; the message says why."""


@dataclass(frozen=True)
class Encoded:
    data: bytes
    how: str
    """indexed, kept (as it was), converted (from another format) or shrunk."""
    reason: str
    """Why a kept file could not be indexed."""
    height: int
    width: int
    """Of the stored pixels, before the orientation is applied."""
    orientation: int
    interval: int


def encode(file: Path, options: OptimizeConfig) -> tuple[bytes, Encoded]:
    """The file's bytes and what to store for them. Raises RejectedError."""
    if not file.name.lower().endswith(IMAGE_SUFFIXES):
        raise RejectedError(f"no image by its name, which ends in none of {IMAGE_SUFFIXES}")
    try:
        original = file.read_bytes()
    except OSError as error:
        raise RejectedError(f"unreadable: {error.strerror}") from error
    if not original:
        raise RejectedError("empty file")
    return original, _encode(original, options)


def _encode(original: bytes, options: OptimizeConfig) -> Encoded:
    if not original.startswith(_JPEG_START):
        return _index(_convert(original, options), "converted", options.interval)
    jpeg = _tensor(original)
    try:
        too_large = options.max_side is not None and max(jpeg_size(jpeg)) > options.max_side
    except JpegError as error:
        raise RejectedError(str(error)) from error
    if too_large:
        return _index(_convert(original, options), "shrunk", options.interval)
    return _index(original, "indexed", options.interval)


def _index(data: bytes, how: str, interval: int) -> Encoded:
    """With restart markers; the operator has compared all pixels before it returns them."""
    jpeg = _tensor(data)
    reason = ""
    try:
        jpeg = add_restart_markers(jpeg, interval)
    except NotIndexableError as error:
        how, reason = "kept", str(error)
    try:
        height, width = jpeg_size(jpeg)
        if how == "kept":
            decode_and_crop_jpeg(jpeg, 0, 0, height, width)
        stored = jpeg.numpy().tobytes()
        return Encoded(
            stored, how, reason, height, width, jpeg_orientation(jpeg), restart_interval(stored)
        )
    except JpegError as error:
        raise RejectedError(str(error)) from error


def _convert(original: bytes, options: OptimizeConfig) -> bytes:
    """Any format Pillow reads, as JPEG without chroma subsampling, its orientation kept."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(original))
            exif = Image.Exif()
            exif[_ORIENTATION_TAG] = image.getexif().get(_ORIENTATION_TAG, 1)
            rgb = image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Warning, Image.DecompressionBombError) as error:
        raise RejectedError(f"no image that can be read: {error}") from error
    if options.max_side is not None:
        rgb.thumbnail((options.max_side, options.max_side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    rgb.save(file, "JPEG", quality=options.quality, subsampling="4:4:4", exif=exif)
    return file.getvalue()


def _tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))
