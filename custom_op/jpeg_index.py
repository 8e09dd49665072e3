"""The side index: where decoding can start inside a file."""

from __future__ import annotations

import torch
from torch import Tensor

from custom_op.crop import MAX_PIXELS
from custom_op.jpeg_errors import raising_jpeg_error
from custom_op.load import load

_INTERVAL = slice(4, 8)
"""Of an index: see Note [Side index] in csrc/entropy/side_index.h."""


def index_jpeg(data: Tensor, interval: int = 10, *, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Indexes a JPEG, so that crops of it decode as fast as with restart markers.

    The index holds the position and the DC predictors of every `interval`-th MCU. With the default,
    it has about 1 % of the file's size. It belongs to this file alone: its size, its header, and
    the bytes where decoding starts are compared with what the index was made of. A changed file
    decodes as if it had no index, and so does any file with a damaged index.

    Args:
        data: uint8 `(bytes,)`, one encoded JPEG.
        interval: MCUs between entries, at least 1. A smaller one decodes less and takes more space.
        max_pixels: an image with more pixels raises JpegError.

    Returns:
        uint8 `(bytes,)`; empty if the file needs no index or cannot have one: it has restart
        markers, is not baseline, or is damaged.

    Raises:
        JpegError: the data is not a JPEG, or `interval` is not allowed.
    """
    load()
    with raising_jpeg_error():
        return torch.ops.custom_op.index_jpeg.default(data, interval, max_pixels=max_pixels)


def is_index_of(data: Tensor, index: Tensor) -> bool:
    """Whether an index is the one that `index_jpeg` makes of a file, entry for entry.

    Decoding compares only what it uses, and never gives wrong pixels. This tells which indexes of a
    dataset to make again. Raises JpegError if the data is not a JPEG.
    """
    interval = int.from_bytes(bytes(index[_INTERVAL].numpy()), "little")
    return interval > 0 and torch.equal(index_jpeg(data, interval), index)


def to_baseline(data: Tensor, *, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Rewrites a progressive JPEG as a baseline one, without loss, so that it can have an index.

    The coefficients stay the same. The Huffman tables are optimized, and there are no restart
    markers. EXIF, ICC and other segments are kept. The result is decoded and compared with the
    original before it is returned. Files with arithmetic coding or several scans become baseline,
    too. A file that is baseline already is returned as it is, unchecked.

    Args:
        data: uint8 `(bytes,)`, one encoded JPEG.
        max_pixels: an image with more pixels raises JpegError.

    Returns:
        uint8 `(bytes,)`.

    Raises:
        JpegError: the file is damaged or not supported, or its pixels would change; keep the
            original.
    """
    load()
    with raising_jpeg_error():
        return torch.ops.custom_op.to_baseline.default(data, max_pixels=max_pixels)
