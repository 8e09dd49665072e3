"""How strong each operation of TrivialAugment, RandAugment and AutoAugment may be.

The numbers are those of `_AUGMENTATION_SPACE` in torchvision/transforms/v2/_auto_augment.py; the
operations get them as its `_apply_image_or_video_transform` passes them on. timm's are below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from custom_op.augment_ops import COLUMNS
from entry_point.data.plan.augment.policy import Floats, Uniform, row

OPERATIONS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness"),
    *("saturation", "contrast", "sharpness", "posterize", "solarize", "autocontrast", "equalize"),
)
"""Of TrivialAugmentWide and RandAugment, in torchvision's order."""
MOVES = OPERATIONS[1:6]
"""Those that move pixels."""
_FACTORS = ("brightness", "saturation", "contrast", "sharpness")
_SIGNED = (*MOVES, *_FACTORS)
_STRONGEST = 255


@dataclass(frozen=True)
class Space:
    """The strongest magnitudes; the others are evenly spaced from none to these."""

    shear: float
    """Tangent of the angle."""
    translate: float
    """Pixels, or with `relative` a share of the side."""
    rotate: float
    """Degrees."""
    factor: float
    """How far brightness, contrast, saturation and sharpness go from 1."""
    bits: int
    """How many bits posterize takes away."""
    relative: bool = False


WIDE = Space(shear=0.99, translate=32, rotate=135, factor=0.99, bits=6)
"""TrivialAugmentWide."""
STANDARD = Space(shear=0.3, translate=150 / 331, rotate=30, factor=0.9, bits=4, relative=True)
"""RandAugment and AutoAugment."""


@dataclass(frozen=True)
class Move:
    """How operations that move pixels read and fill the image."""

    bilinear: bool
    """Else the nearest pixel."""
    fill: tuple[int, ...]
    """Red, green and blue, 0 to 255."""


def strengths(space: Space, operation: str, count: int, side: int, move: Move) -> Floats:
    """An operation at each of `count` magnitudes, as it is and negated: float32 (count, 2, 8)."""
    cells = np.empty((count, 2, COLUMNS), dtype=np.float32)
    for number, magnitude in enumerate(_magnitudes(space, operation, count, side)):
        for negated in (0, 1):
            signed = -magnitude if negated and operation in _SIGNED else magnitude
            cells[number, negated] = _row(operation, signed, move)
    return cells


def _magnitudes(space: Space, operation: str, count: int, side: int) -> Sequence[float]:
    if operation.startswith("shear"):
        return _evenly(0, space.shear, count)
    if operation.startswith("translate"):
        return _evenly(0, space.translate * (side if space.relative else 1), count)
    if operation == "rotate":
        return _evenly(0, space.rotate, count)
    if operation in _FACTORS:
        return _evenly(0, space.factor, count)
    if operation == "posterize":
        return [round(8 - bits) for bits in _evenly(0, space.bits, count)]
    if operation == "solarize":
        return _evenly(1, 0, count)
    return [0.0] * count


def _evenly(first: float, last: float, count: int) -> list[float]:
    """As torchvision: rounded to float32, which decides about whole pixels."""
    values: list[float] = torch.linspace(first, last, count).tolist()
    return values


def _row(operation: str, magnitude: float, move: Move) -> Floats:
    if operation in MOVES:
        amount = math.trunc(magnitude) if operation.startswith("translate") else magnitude
        return row(operation, amount, move.bilinear, *move.fill)
    if operation in _FACTORS:
        return row(operation, 1 + magnitude)
    if operation == "posterize":
        return row(operation, magnitude)
    if operation == "solarize":
        # The whole level from which on torchvision inverts.
        return row(operation, math.ceil(np.float32(_STRONGEST * magnitude)))
    return row(operation)


def timm_magnitudes(
    level: Uniform, negated: NDArray[np.bool_], side: int, *, increasing: bool
) -> dict[str, tuple[Uniform, ...]]:
    """The first parameter of each of timm's 15 operations at `level` of 10; () without one.

    The functions `_..._level_to_arg` in timm/data/auto_augment.py. Without `increasing` (`inc1`), a
    higher level posterizes and solarizes less, and takes contrast and the like from 0.1 to 1.9.
    """
    share = level / 10
    signed = np.where(negated, -share, share)
    bits, threshold, factor = np.floor(4 * share), np.floor(256 * share), 0.1 + 1.8 * share
    if increasing:
        bits, threshold, factor = 4 - bits, 256 - threshold, np.maximum(0.1, 1 + 0.9 * signed)
    pixels = np.rint(0.45 * signed * side)
    return {
        **dict.fromkeys(("autocontrast", "equalize", "invert"), ()),
        "rotate": (30 * signed,),
        "posterize": (bits,),
        "solarize": (threshold,),
        "solarize_add": (np.floor(110 * share),),
        **dict.fromkeys(_FACTORS, (factor,)),
        **dict.fromkeys(("shear_x", "shear_y"), (0.3 * signed,)),
        **dict.fromkeys(("translate_x", "translate_y"), (pixels,)),
    }
