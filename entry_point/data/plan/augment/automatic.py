"""TrivialAugmentWide as torchvision draws it, RandAugment as timm does.

TrivialAugmentWide's strengths are those of `_AUGMENTATION_SPACE` in
torchvision/transforms/v2/_auto_augment.py; the operations get them as its
`_apply_image_or_video_transform` passes them on. timm's are below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from custom_op.augment_ops import COLUMNS
from entry_point.config.policy_config import RandTimm
from entry_point.data.plan.augment.policy import Floats, Uniform, applied, choice, row, rows


@dataclass(frozen=True)
class TrivialAugment:
    """TrivialAugmentWide: one operation of 14, its magnitude and its sign, all equally likely.

    Müller and Hutter, "TrivialAugment" (ICCV 2021).
    """

    move: Move
    draws: int = 3

    def table(self, u: Uniform, side: int) -> Floats:  # noqa: ARG002 - as Policy
        strength = choice(u[1], MAGNITUDES)
        cells = _all_strengths(self.move)
        return cells[choice(u[0], len(OPERATIONS)), strength, choice(u[2], 2)][:, None]


@dataclass(frozen=True)
class TimmRandAugment:
    """`n` of 15 operations, drawn with replacement, each applied with the probability `p`, at a
    normally distributed magnitude and with a random sign.

    As `rand_augment_transform` in timm/data/auto_augment.py, in whole pixels; DeiT draws so.
    """

    move: Move
    config: RandTimm

    @property
    def draws(self) -> int:
        return 4 * self.config.n

    def table(self, u: Uniform, side: int) -> Floats:
        config = self.config
        picks, applies, spreads, signs = u.reshape(4, config.n, -1)
        level = np.full_like(spreads, config.m)
        if config.mstd:
            level += config.mstd * torch.special.ndtri(torch.from_numpy(spreads)).numpy()
        magnitudes = timm_magnitudes(level.clip(0, 10), signs < 0.5, side, increasing=config.inc)
        picked = choice(picks, len(magnitudes))
        cells = np.empty((*picked.shape, COLUMNS), dtype=np.float32)
        for number, (name, magnitude) in enumerate(magnitudes.items()):
            here = picked == number
            fixed = (self.move.bilinear, *self.move.fill) if name in MOVES else ()
            cells[here] = rows(name, *(each[here] for each in magnitude), *fixed)
        return applied(cells, applies < config.p).swapaxes(0, 1)


@cache
def _all_strengths(move: Move) -> Floats:
    """float32 (operations, magnitudes, 2, 8)."""
    return np.stack([strengths(name, move) for name in OPERATIONS])


# Strengths

OPERATIONS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness"),
    *("saturation", "contrast", "sharpness", "posterize", "solarize", "autocontrast", "equalize"),
)
"""Of TrivialAugmentWide, in torchvision's order."""
MAGNITUDES = 31
"""Strengths of each operation, from none to the strongest."""
MOVES = OPERATIONS[1:6]
"""Those that move pixels."""
_FACTORS = ("brightness", "saturation", "contrast", "sharpness")
_SIGNED = (*MOVES, *_FACTORS)
_STRONGEST = 255


@dataclass(frozen=True)
class Move:
    """How operations that move pixels read and fill the image."""

    bilinear: bool
    """Else the nearest pixel."""
    fill: tuple[int, ...]
    """Red, green and blue, 0 to 255."""


def strengths(operation: str, move: Move) -> Floats:
    """Returns an operation at each of its magnitudes, as it is and negated: float32 (31, 2, 8)."""
    cells = np.empty((MAGNITUDES, 2, COLUMNS), dtype=np.float32)
    for number, magnitude in enumerate(_magnitudes(operation)):
        for negated in (0, 1):
            signed = -magnitude if negated and operation in _SIGNED else magnitude
            cells[number, negated] = _row(operation, signed, move)
    return cells


def _magnitudes(operation: str) -> Sequence[float]:
    if operation.startswith("shear"):
        return _evenly(0, 0.99)  # the tangent of the angle
    if operation.startswith("translate"):
        return _evenly(0, 32)  # pixels
    if operation == "rotate":
        return _evenly(0, 135)  # degrees
    if operation in _FACTORS:
        return _evenly(0, 0.99)  # how far the factor goes from 1
    if operation == "posterize":
        return [round(8 - bits) for bits in _evenly(0, 6)]
    if operation == "solarize":
        return _evenly(1, 0)
    return [0.0] * MAGNITUDES


def _evenly(first: float, last: float) -> list[float]:
    """As torchvision: rounded to float32, which decides about whole pixels."""
    values: list[float] = torch.linspace(first, last, MAGNITUDES).tolist()
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
    """Returns the first parameter of each of timm's 15 operations at `level` of 10; () without one.

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
