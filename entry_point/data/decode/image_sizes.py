"""Sizes of JPEGs, from the index or from their headers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from custom_op import JpegError, jpeg_orientation, jpeg_size
from entry_point.data.plan.crops import Ints
from entry_point.data.plan.orientation import upright_size
from entry_point.data.sources.source import Source


def upright_sizes(source: Source, files: Sequence[Tensor], indices: Ints) -> tuple[Ints, Ints]:
    """Heights and widths in pixels, int64 (N,), with the orientation applied."""
    if source.sizes is not None:
        heights, widths = source.sizes.heights[indices], source.sizes.widths[indices]
        return heights.astype(np.int64), widths.astype(np.int64)
    heights, widths = np.array([_upright_size(file) for file in files]).T
    return heights, widths


def _upright_size(file: Tensor) -> tuple[int, int]:
    """1 x 1 for a file whose header the operator will refuse too."""
    try:
        return upright_size(*jpeg_size(file), jpeg_orientation(file))
    except JpegError:
        return 1, 1
