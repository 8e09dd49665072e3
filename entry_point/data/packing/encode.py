"""Encodes one source file as a JPEG with restart markers, or says why it cannot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from custom_op import (
    JpegError,
    NotIndexableError,
    add_restart_markers,
    decode_and_crop_jpeg,
    jpeg_headers,
    jpeg_size,
    jpeg_warnings,
)
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.packing.convert import RejectedError, to_jpeg

_JPEG_START = b"\xff\xd8\xff"
_SOS, _DRI = 0xDA, 0xDD
_MOST_GROWTH = 0.01
"""By restart markers, as a share of the file: small MCUs and low quality get fewer markers."""


@dataclass(frozen=True)
class Encoded:
    data: bytes
    how: str
    """indexed (restart markers added), kept (unchanged), converted (from another format) or
    shrunk."""
    note: str
    """Why a kept file could not be indexed, or what a converted file lost."""
    height: int
    """Of the stored pixels, before the orientation is applied."""
    width: int
    orientation: int
    """EXIF, 1 to 8."""
    interval: int
    """MCUs between restart markers, 0 for none."""
    warnings: tuple[str, ...] = ()
    """What libjpeg warns about in the source file; none of it changes a pixel."""


def encode(file: Path, options: OptimizeConfig) -> tuple[bytes, Encoded]:
    """The file's bytes, and what to store for them. Raises RejectedError."""
    try:
        original = file.read_bytes()
    except OSError as error:
        raise RejectedError(f"unreadable: {error.strerror}") from error
    if not original:
        raise RejectedError("empty file")
    try:
        return original, _encode(original, options)
    except JpegError as error:
        raise RejectedError(str(error)) from error


def _encode(original: bytes, options: OptimizeConfig) -> Encoded:
    if not original.startswith(_JPEG_START):
        return _convert(original, "converted", options)
    jpeg = _tensor(original)
    return replace(_encode_jpeg(jpeg, original, options), warnings=tuple(jpeg_warnings(jpeg)))


def _encode_jpeg(jpeg: Tensor, original: bytes, options: OptimizeConfig) -> Encoded:
    if options.max_side is not None and max(jpeg_size(jpeg)) > options.max_side:
        return _convert(original, "shrunk", options)
    try:
        return _index(jpeg, "indexed", "", options)
    except NotIndexableError as error:
        decode_and_crop_jpeg(jpeg, 0, 0, *jpeg_size(jpeg))
        return _describe(jpeg, "kept", str(error))


def _convert(original: bytes, how: str, options: OptimizeConfig) -> Encoded:
    data, lost = to_jpeg(original, options)
    return _index(_tensor(data), how, lost, options)


def _index(jpeg: Tensor, how: str, note: str, options: OptimizeConfig) -> Encoded:
    """With restart markers; the operator has compared all pixels with the original's."""
    marked = add_restart_markers(jpeg, options.interval, max_growth=_MOST_GROWTH)
    return _describe(marked, how, note)


def _describe(jpeg: Tensor, how: str, note: str) -> Encoded:
    stored = jpeg.numpy().tobytes()
    height, width, orientation = jpeg_headers([jpeg])[0].tolist()
    return Encoded(stored, how, note, height, width, orientation, _restart_interval(stored))


def _tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))


def _restart_interval(jpeg: bytes) -> int:
    """MCUs between restart markers, 0 for none. The file must be known to decode."""
    place, interval = 2, 0
    while place + 4 <= len(jpeg) and (marker := jpeg[place + 1]) != _SOS:
        if jpeg[place] != 0xFF or marker in (0, 0xFF):  # an extraneous or a fill byte
            place += 1
            continue
        if marker == _DRI:
            interval = int.from_bytes(jpeg[place + 4 : place + 6], "big")
        place += 2 + int.from_bytes(jpeg[place + 2 : place + 4], "big")
    return interval
