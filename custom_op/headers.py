"""Size and orientation of JPEGs, from their headers alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from custom_op.decode import raising_jpeg_error
from custom_op.load import load


def jpeg_headers(jpegs: Sequence[Tensor]) -> Tensor:
    """Height, width and EXIF orientation of every image, each header parsed once.

    Args:
        jpegs: uint8 `(bytes,)` tensors.

    Returns:
        int64 `(N, 3)`: the stored height and width, and the orientation: 1 to 8, or 1 if the file
        has none. The row of a file whose header cannot be read is zeros, so that one damaged file
        does not fail a batch; `jpeg_size` of that file raises the reason.

    Raises:
        JpegError: a tensor of the wrong dtype, shape or device.
    """
    return _headers(jpegs, mask_errors=True)


def jpeg_size(data: Tensor) -> tuple[int, int]:
    """Returns the stored `(height, width)` of one JPEG. Raises JpegError."""
    height, width, _ = _headers([data], mask_errors=False)[0].tolist()
    return height, width


def _headers(jpegs: Sequence[Tensor], mask_errors: bool) -> Tensor:
    load()
    if not jpegs:
        return torch.empty((0, 3), dtype=torch.int64)
    with raising_jpeg_error():
        return torch.ops.custom_op.jpeg_headers.default(list(jpegs), mask_errors=mask_errors)
