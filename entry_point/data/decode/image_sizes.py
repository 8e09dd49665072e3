"""Sizes of JPEGs, from the index or from their headers."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from custom_op import Packed, jpeg_headers
from entry_point.data.plan.crops import Ints
from entry_point.data.plan.orientation import upright_size
from entry_point.data.sources.source import Source


def upright_sizes(source: Source, files: list[Tensor] | Packed, indices: Ints) -> tuple[Ints, Ints]:
    """Heights and widths in pixels, int64 (N,), with the orientation applied."""
    if source.sizes is not None:
        heights, widths = source.sizes.heights[indices], source.sizes.widths[indices]
        return heights.astype(np.int64), widths.astype(np.int64)
    # A file without a readable header counts as 1 x 1; the operator refuses to decode it, too.
    return upright_size(*np.maximum(jpeg_headers(files).numpy(), 1).T)
