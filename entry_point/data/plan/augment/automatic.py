"""TrivialAugment, RandAugment and AutoAugment as torchvision draws them, RandAugment as timm.

The strengths are those of `_AUGMENTATION_SPACE` in torchvision/transforms/v2/_auto_augment.py; the
operations get them as its `_apply_image_or_video_transform` passes them on. timm's are below.
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
from entry_point.config.policy_config import MAGNITUDES, RandTimm
from entry_point.data.plan.augment.policy import Floats, Uniform, applied, choice, row, rows

_AUTO_MAGNITUDES = 10
# Operation, probability, and magnitude's number: `_get_policies` of torchvision's AutoAugment
# (transforms/v2/_auto_augment.py), from Cubuk et al., "AutoAugment" (CVPR 2019), table 9.
_IMAGENET = (
    (("posterize", 0.4, 8), ("rotate", 0.6, 9)),
    (("solarize", 0.6, 5), ("autocontrast", 0.6, 0)),
    (("equalize", 0.8, 0), ("equalize", 0.6, 0)),
    (("posterize", 0.6, 7), ("posterize", 0.6, 6)),
    (("equalize", 0.4, 0), ("solarize", 0.2, 4)),
    (("equalize", 0.4, 0), ("rotate", 0.8, 8)),
    (("solarize", 0.6, 3), ("equalize", 0.6, 0)),
    (("posterize", 0.8, 5), ("equalize", 1.0, 0)),
    (("rotate", 0.2, 3), ("solarize", 0.6, 8)),
    (("equalize", 0.6, 0), ("posterize", 0.4, 6)),
    (("rotate", 0.8, 8), ("saturation", 0.4, 0)),
    (("rotate", 0.4, 9), ("equalize", 0.6, 0)),
    (("equalize", 0.0, 0), ("equalize", 0.8, 0)),
    (("invert", 0.6, 0), ("equalize", 1.0, 0)),
    (("saturation", 0.6, 4), ("contrast", 1.0, 8)),
    (("rotate", 0.8, 8), ("saturation", 1.0, 2)),
    (("saturation", 0.8, 8), ("solarize", 0.8, 7)),
    (("sharpness", 0.4, 7), ("invert", 0.6, 0)),
    (("shear_x", 0.6, 5), ("equalize", 1.0, 0)),
    (("saturation", 0.4, 0), ("equalize", 0.6, 0)),
    (("equalize", 0.4, 0), ("solarize", 0.2, 4)),
    (("solarize", 0.6, 5), ("autocontrast", 0.6, 0)),
    (("invert", 0.6, 0), ("equalize", 1.0, 0)),
    (("saturation", 0.6, 4), ("contrast", 1.0, 8)),
    (("equalize", 0.8, 0), ("equalize", 0.6, 0)),
)


@dataclass(frozen=True)
class TrivialAugment:
    """TrivialAugmentWide: one operation of 14, its magnitude and its sign, all equally likely.

    Müller and Hutter, "TrivialAugment" (ICCV 2021).
    """

    move: Move
    draws: int = 3

    def table(self, u: Uniform, side: int) -> Floats:
        strength = choice(u[1], MAGNITUDES)
        cells = _all_strengths(WIDE, side, self.move)
        return cells[choice(u[0], len(OPERATIONS)), strength, choice(u[2], 2)][:, None]


@dataclass(frozen=True)
class RandAugment:
    """`count` operations of 14, drawn with replacement, at one magnitude with a random sign.

    Cubuk et al., "RandAugment" (NeurIPS 2020).
    """

    move: Move
    count: int
    magnitude: int

    @property
    def draws(self) -> int:
        return 2 * self.count

    def table(self, u: Uniform, side: int) -> Floats:
        cells = _all_strengths(STANDARD, side, self.move)[:, self.magnitude]
        picked = cells[choice(u[: self.count], len(OPERATIONS)), choice(u[self.count :], 2)]
        return picked.swapaxes(0, 1)


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


@dataclass(frozen=True)
class AutoAugment:
    """One of 25 pairs of operations, each with its own probability and a random sign."""

    move: Move
    draws: int = 5

    def table(self, u: Uniform, side: int) -> Floats:
        cells, chances = _pairs(side, self.move)
        pair = choice(u[0], len(_IMAGENET))
        picked = [
            applied(cells[pair, i, choice(u[3 + i], 2)], u[1 + i] < chances[pair, i])
            for i in (0, 1)
        ]
        return np.stack(picked, axis=1)


@cache
def _all_strengths(space: Space, side: int, move: Move) -> Floats:
    """float32 (operations, magnitudes, 2, 8)."""
    return np.stack([strengths(space, name, MAGNITUDES, side, move) for name in OPERATIONS])


@cache
def _pairs(side: int, move: Move) -> tuple[Floats, Uniform]:
    """The pairs, as they are and negated: float32 (25, 2, 2, 8); and probabilities (25, 2)."""
    cells = np.empty((len(_IMAGENET), 2, 2, COLUMNS), dtype=np.float32)
    for number, pair in enumerate(_IMAGENET):
        for place, (name, _, strength) in enumerate(pair):
            of_all = strengths(STANDARD, name, _AUTO_MAGNITUDES, side, move)
            cells[number, place] = of_all[strength]
    return cells, np.array([[chance for _, chance, _ in pair] for pair in _IMAGENET])


# Strengths

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
