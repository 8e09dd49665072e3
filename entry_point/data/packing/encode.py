"""Turns one source file into a JPEG with a side index, or says why it has none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
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
from entry_point.data.packing.convert import RejectedError, to_jpeg

_JPEG_START = b"\xff\xd8\xff"
_PROOF_CROPS, _PROOF_WIDTH = 2, 8


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


def encode(file: Path, options: OptimizeConfig) -> tuple[bytes, Encoded]:
    """The file's bytes, and what to store for them. Raises RejectedError."""
    original = _read(file)
    try:
        return original, _encode(original, options)
    except JpegError as error:
        raise RejectedError(str(error)) from error


def index_file(file: Path) -> tuple[int, bytes, str]:
    """Size of a JPEG file, and its side index or why it has none. Raises RejectedError."""
    original = _read(file)
    if not original.startswith(_JPEG_START):
        raise RejectedError("no JPEG")
    jpeg = _tensor(original)
    try:
        index, reason = _prove(jpeg)
    except JpegError as error:
        raise RejectedError(str(error)) from error
    return len(original), index, reason


def _read(file: Path) -> bytes:
    try:
        original = file.read_bytes()
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
    data, lost = to_jpeg(original, options)
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
