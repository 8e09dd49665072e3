"""The side index: where decoding can start inside a file."""

from __future__ import annotations

import torch
from torch import Tensor

from custom_op.decode import MAX_PIXELS, MAX_SHARE, raising_jpeg_error
from custom_op.load import load


def index_jpeg(
    data: Tensor, *, max_share: float = MAX_SHARE, max_pixels: int = MAX_PIXELS
) -> Tensor:
    """Indexes a JPEG, so that crops of it decode without the data before them.

    The index holds positions at which decoding can start, with the DC predictors there, as many as
    its size allows. It belongs to this file alone: its size, its header, both ends of its data and
    a few places between them, and the bytes where decoding starts, are compared with what the
    index was made of. A changed file decodes as if it had no index, and so does any file with a
    damaged index. Decoding compares only what it uses; the same file always gives the same index,
    so `torch.equal` tells whether an index is the one of a file.

    Args:
        data: uint8 `(bytes,)`, one encoded JPEG.
        max_share: size of the index at most, as a share of the file's size. More entries decode
            less, and save little beyond the default.
        max_pixels: an image with more pixels raises JpegError.

    Returns:
        uint8 `(bytes,)`; empty if the file cannot have an index: it has restart markers, is not
        baseline, is damaged, or is too small for one of this share (4 KB). Files with restart
        markers decode from those. With a marker per row of MCUs, or less often, that takes 18 to
        57 % longer than with an index.

    Raises:
        JpegError: the data is not a JPEG.
    """
    load()
    with raising_jpeg_error():
        return torch.ops.custom_op.index_jpeg.default(
            data, max_share=max_share, max_pixels=max_pixels
        )


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
