"""Where decoding can start inside a file: restart markers in it, or an index beside it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from custom_op.decode import MAX_PIXELS, JpegError, NotIndexableError, raising_jpeg_error
from custom_op.load import load

_NOT_INDEXABLE = "not indexable: "
_INTERVAL = slice(4, 8)
"""Of an index: see Note [Side index] in csrc/entropy/side_index.h."""


def add_restart_markers(
    data: Tensor, interval: int, *, max_growth: float = math.inf, max_pixels: int = MAX_PIXELS
) -> Tensor:
    """Rewrites a JPEG with restart markers, without loss, so that crops decode faster.

    The coefficients stay the same. Optimized Huffman tables mostly make up for the size of the
    markers. Progressive files become baseline. EXIF, ICC and other segments are kept. The result is
    decoded and compared with the original before it is returned.

    Args:
        data: uint8 `(bytes,)`, one encoded JPEG.
        interval: the largest number of MCUs between markers. The largest divisor of the MCUs per
            row that is at most `interval` is used; if that is 1 and `interval` is not, one marker
            per row.
        max_growth: if the file would grow by more than this share of its size, a longer interval is
            used, at most one marker per row. Default: no limit.
        max_pixels: an image with more pixels raises NotIndexableError.

    Raises:
        NotIndexableError: the file is damaged or not supported, or its pixels would change; keep
            the original.
        JpegError: `interval` is less than 1.
    """
    load()
    try:
        return torch.ops.custom_op.add_restart_markers.default(
            data, interval, max_growth=max_growth, max_pixels=max_pixels
        )
    except RuntimeError as error:
        message = str(error)
        if message.startswith(_NOT_INDEXABLE):
            raise NotIndexableError(message.removeprefix(_NOT_INDEXABLE)) from None
        raise JpegError(message) from None


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
