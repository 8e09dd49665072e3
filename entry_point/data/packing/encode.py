"""Turns one source file into a JPEG in which decoding can start anywhere, or says why not."""

from __future__ import annotations

from collections.abc import Iterator
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
    index_jpeg,
    jpeg_headers,
    jpeg_size,
    jpeg_warnings,
)
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.packing.convert import RejectedError, to_jpeg

_JPEG_START = b"\xff\xd8\xff"
_SOS, _DRI = 0xDA, 0xDD
_SEQUENTIAL = (0xC0, 0xC1)
"""SOF0 and SOF1: baseline and extended sequential, Huffman-coded."""
_SIDE_INTERVAL, _MARKER_INTERVAL = 10, 4
_MOST_GROWTH = 0.01
"""By restart markers, as a share of the file: small MCUs and low quality get fewer markers."""
_PROOF_CROPS, _PROOF_WIDTH = 2, 8


@dataclass(frozen=True)
class Encoded:
    data: bytes
    how: str
    """indexed (unchanged, with a side index), rewritten (with restart markers), kept (unchanged,
    without an index), converted (from another format) or shrunk."""
    note: str
    """Why a kept file has no index, or what a converted file lost."""
    height: int
    """Of the stored pixels, before the orientation is applied."""
    width: int
    orientation: int
    """EXIF, 1 to 8."""
    interval: int
    """MCUs between restart markers, 0 for none."""
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


def index_file(file: Path, options: OptimizeConfig) -> tuple[int, bytes, str]:
    """Size of a JPEG file, and its side index or why it has none. Raises RejectedError."""
    original = _read(file)
    if not original.startswith(_JPEG_START):
        raise RejectedError("no JPEG")
    jpeg = _tensor(original)
    try:
        index, reason = _prove(jpeg, options)
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
    if options.index != "restart" and _is_sequential(original):
        return _keep(jpeg, options)
    try:
        return _describe(_with_markers(jpeg, options), "rewritten", "")
    except NotIndexableError as error:
        decode_and_crop_jpeg(jpeg, 0, 0, *jpeg_size(jpeg))
        return _describe(jpeg, "kept", str(error))


def _keep(jpeg: Tensor, options: OptimizeConfig) -> Encoded:
    """The file's own bytes, and their index."""
    index, reason = _prove(jpeg, options)
    kept = _describe(jpeg, "indexed" if index else "kept", reason, index)
    return replace(kept, note="it has restart markers") if kept.interval else kept


def _convert(original: bytes, how: str, options: OptimizeConfig) -> Encoded:
    data, lost = to_jpeg(original, options)
    jpeg = _tensor(data)
    if options.index == "restart":
        return _describe(_with_markers(jpeg, options), how, lost)
    return _describe(jpeg, how, lost, _prove(jpeg, options)[0])


def _with_markers(jpeg: Tensor, options: OptimizeConfig) -> Tensor:
    """With restart markers; the operator has compared all pixels with the original's."""
    interval = options.interval or _MARKER_INTERVAL
    return add_restart_markers(jpeg, interval, max_growth=_MOST_GROWTH)


def _prove(jpeg: Tensor, options: OptimizeConfig) -> tuple[bytes, str]:
    """The file's side index, or why it has none.

    Every pixel is decoded, so a damaged file raises JpegError. Crops decoded with the index must
    equal that. They are narrow columns, so each starts at an entry in every row of MCUs.
    """
    height, width = jpeg_size(jpeg)
    whole = decode_and_crop_jpeg(jpeg, 0, 0, height, width)
    if options.index == "none":
        return b"", ""
    index = index_jpeg(jpeg)
    if not len(index):
        return b"", "it has restart markers, or its coding allows no side index"
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
    interval = _restart_interval(stored)
    return Encoded(stored, how, note, height, width, orientation, interval, index)


def _tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))


def _is_sequential(jpeg: bytes) -> bool:
    return any(marker in _SEQUENTIAL for marker, _ in _segments(jpeg))


def _restart_interval(jpeg: bytes) -> int:
    """MCUs between restart markers, 0 for none."""
    found = [
        int.from_bytes(jpeg[at : at + 2], "big") for marker, at in _segments(jpeg) if marker == _DRI
    ]
    return found[-1] if found else 0


def _segments(jpeg: bytes) -> Iterator[tuple[int, int]]:
    """Marker and start of the content of each segment before the first scan."""
    place = 2
    while place + 4 <= len(jpeg) and (marker := jpeg[place + 1]) != _SOS:
        if jpeg[place] != 0xFF or marker in (0, 0xFF):  # an extraneous or a fill byte
            place += 1
            continue
        yield marker, place + 4
        place += 2 + int.from_bytes(jpeg[place + 2 : place + 4], "big")
