"""Turns one source file into a JPEG with a side index, or says why it has none.

JPEGs keep their bytes, or become baseline without loss; images of other formats, and images to be
shrunk, are converted.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from custom_op import (
    JpegError,
    decode_and_crop_jpeg,
    index_jpeg,
    jpeg_headers,
    jpeg_size,
    jpeg_warnings,
    to_baseline,
)
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.decode.pillow import opaque
from entry_point.data.sources.file_bytes import read_bytes

_JPEG_START = b"\xff\xd8\xff"
_PROOF_CROPS, _PROOF_WIDTH = 2, 8
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
"""Pillow identifies a file by its content, and some of its other formats start programs."""
_MOST_PIXELS = 89_478_485
"""256 MB of RGB, where Pillow starts to warn of decompression bombs."""
_LONGEST_SIDE = 65_500
"""The longest side that libjpeg writes."""
_ORIENTATION_TAG = 0x0112


class RejectedError(Exception):
    """A file that cannot be packed; the message says why."""


@dataclass(frozen=True)
class Encoded:
    data: bytes
    how: str
    """indexed (unchanged, with a side index), rewritten (as baseline, with a side index), kept
    (unchanged, without an index), converted (from another format) or shrunk."""
    note: str
    """Why a file has no index, or what a converted file lost."""
    height: int
    """Of the stored pixels, before the orientation is applied."""
    width: int
    orientation: int
    """EXIF, 1 to 8."""
    index: bytes = b""
    """The side index, empty for none."""
    warnings: tuple[str, ...] = ()
    """What libjpeg warns about in the source file; none of it changes a pixel."""


def encode(file: Path, options: OptimizeConfig) -> tuple[int, Encoded]:
    """The file's size in bytes, and what to store for it. Raises RejectedError."""
    original = _read(file)
    try:
        return len(original), _encode(original, options)
    except JpegError as error:
        raise RejectedError(str(error)) from error


def index_file(file: Path) -> tuple[bytes, str]:
    """The side index of a JPEG file, or why it has none. Raises RejectedError."""
    original = _read(file)
    if not original.startswith(_JPEG_START):
        raise RejectedError("no JPEG")
    try:
        return _prove(_tensor(original))
    except JpegError as error:
        raise RejectedError(str(error)) from error


def _read(file: Path) -> bytes:
    try:
        original = read_bytes(file).numpy().tobytes()
    except OSError as error:
        raise RejectedError(f"unreadable: {error.strerror}") from error
    if not original:
        raise RejectedError("empty file")
    return original


def _encode(original: bytes, options: OptimizeConfig) -> Encoded:
    if not original.startswith(_JPEG_START):
        return _convert(original, "converted", options)
    jpeg = _tensor(original)
    return replace(_encode_jpeg(jpeg, original, options), warnings=tuple(jpeg_warnings(jpeg)))


def _encode_jpeg(jpeg: Tensor, original: bytes, options: OptimizeConfig) -> Encoded:
    if options.max_side is not None and max(jpeg_size(jpeg)) > options.max_side:
        return _convert(original, "shrunk", options)
    try:
        baseline = to_baseline(jpeg)
    except JpegError as error:
        decode_and_crop_jpeg(jpeg, 0, 0, *jpeg_size(jpeg))
        return _describe(jpeg, "kept", str(error))
    index, reason = _prove(baseline)
    if not torch.equal(baseline, jpeg):
        return _describe(baseline, "rewritten", reason, index)
    return _describe(jpeg, "indexed" if index else "kept", reason, index)


def _convert(original: bytes, how: str, options: OptimizeConfig) -> Encoded:
    data, lost = _to_jpeg(original, options)
    jpeg = _tensor(data)
    return _describe(jpeg, how, lost, _prove(jpeg)[0])


def _prove(jpeg: Tensor) -> tuple[bytes, str]:
    """The file's side index, or why it has none.

    Every pixel is decoded, so a damaged file raises JpegError. Crops decoded with the index must
    equal that. They are narrow columns, so each starts at an entry in every row of MCUs.
    """
    height, width = jpeg_size(jpeg)
    whole = decode_and_crop_jpeg(jpeg, 0, 0, height, width)
    index = index_jpeg(jpeg)
    if not len(index):
        return b"", "it has restart markers, is too small, or its coding allows no side index"
    across = min(width, _PROOF_WIDTH)
    for place in range(_PROOF_CROPS):
        left = (width - across) * (place + 1) // _PROOF_CROPS
        crop = decode_and_crop_jpeg(jpeg, 0, left, height, across, index=index)
        if not torch.equal(crop, whole[:, :, left : left + across]):
            return b"", "a side index would change its pixels"
    return index.numpy().tobytes(), ""


def _describe(jpeg: Tensor, how: str, note: str, index: bytes = b"") -> Encoded:
    stored = jpeg.numpy().tobytes()
    height, width, orientation = jpeg_headers([jpeg])[0].tolist()
    return Encoded(stored, how, note, height, width, orientation, index)


def _tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))


def _to_jpeg(original: bytes, options: OptimizeConfig) -> tuple[bytes, str]:
    """A JPEG without chroma subsampling and with the same orientation; and what it lost, if any.

    Raises RejectedError.
    """
    try:
        image = Image.open(io.BytesIO(original), formats=_FORMATS)
        _require_one_image(image)
        orientation = image.getexif().get(_ORIENTATION_TAG)
        rgb, lost = _to_rgb(image)
        if options.max_side is not None:
            rgb.thumbnail((options.max_side, options.max_side), Image.Resampling.LANCZOS)
        if max(rgb.size) > _LONGEST_SIDE:
            raise RejectedError(
                f"{rgb.width}x{rgb.height} pixels: a JPEG side has at most {_LONGEST_SIDE}, "
                "shrink it with max_side"
            )
        exif = Image.Exif()
        valid = isinstance(orientation, int) and 1 <= orientation <= 8
        exif[_ORIENTATION_TAG] = orientation if valid else 1
        file = io.BytesIO()
        rgb.save(file, "JPEG", quality=options.quality, subsampling="4:4:4", exif=exif)
    except (RejectedError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise RejectedError(f"not an image in one of the formats {', '.join(_FORMATS)}") from error
    except Exception as error:  # Pillow's parsers raise any type for a damaged file
        raise RejectedError(f"cannot be decoded: {error}") from error
    return file.getvalue(), lost


def _require_one_image(image: Image.Image) -> None:
    if image.width * image.height > _MOST_PIXELS:
        raise RejectedError(f"{image.width}x{image.height}: more than {_MOST_PIXELS} pixels")
    # Additional images in a JPEG file are previews and the like.
    if image.format not in ("JPEG", "MPO") and (frames := getattr(image, "n_frames", 1)) > 1:
        raise RejectedError(f"holds {frames} images: save each one in a separate file")


def _to_rgb(image: Image.Image) -> tuple[Image.Image, str]:
    # Older releases of Pillow read 16-bit PNGs as 32-bit integers.
    if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PNG"):
        levels = np.rint(np.asarray(image, dtype=np.float32) / 257).astype(np.uint8)
        return Image.fromarray(levels).convert("RGB"), "16 bits became 8"
    if image.mode in ("I", "F"):
        raise RejectedError("has 32 bits per pixel without a defined range: convert it to 8 or 16")
    transparent = image.has_transparency_data
    return opaque(image), "transparency replaced by white" if transparent else ""
