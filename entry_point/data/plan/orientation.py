"""EXIF orientation: from the stored pixels to the upright image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

_Int = TypeVar("_Int", bound=np.integer)

# EXIF value -> (transpose, then flip top-bottom, then flip left-right), which make it upright.
_STEPS = {
    1: (False, False, False),
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}

_TRANSPOSED = tuple(value for value, steps in _STEPS.items() if steps[0])


def upright_size(
    height: NDArray[_Int], width: NDArray[_Int], orientation: NDArray[np.integer]
) -> tuple[NDArray[_Int], NDArray[_Int]]:
    """Upright (height, width) of images stored as `height` x `width`."""
    transposed = np.isin(orientation, _TRANSPOSED)
    return np.where(transposed, width, height), np.where(transposed, height, width)


def stored_box(
    box: Sequence[int], height: int, width: int, orientation: int
) -> tuple[int, int, int, int]:
    """`box` of an upright `height` x `width` image, as a box of its stored pixels."""
    transpose, flip_rows, flip_columns = _STEPS[orientation]
    top, left, box_height, box_width = (int(side) for side in box)
    if flip_rows:
        top = height - top - box_height
    if flip_columns:
        left = width - left - box_width
    if transpose:
        return left, top, box_width, box_height
    return top, left, box_height, box_width


def upright(image: Tensor, orientation: int) -> Tensor:
    """`image` (..., height, width) turned upright."""
    transpose, flip_rows, flip_columns = _STEPS[orientation]
    if transpose:
        image = image.transpose(-2, -1)
    dims = [dim for dim, flip in ((-2, flip_rows), (-1, flip_columns)) if flip]
    return image.flip(dims) if dims else image
