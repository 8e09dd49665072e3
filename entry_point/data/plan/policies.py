"""The augmentation policies of `augment.name` and `augment.erase`, applied to each resized crop.

A policy turns random numbers into operations of `custom_op.augment_ops`, so that the operator
augments as torchvision's and timm's classes. Each policy cites the code whose draws it follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from custom_op.augment_ops import COLUMNS, NUMBERS, PARAMETERS
from entry_point.config import policy_config
from entry_point.config.augment_config import AugmentConfig
from entry_point.data.plan.philox import philox, unit
from entry_point.data.plan.samples import Samples

Floats = NDArray[np.float32]
Uniform = NDArray[np.float64]
"""Numbers in [0, 1)."""

_POLICY_STREAM, _ERASE_STREAM = 6, 7
_WORDS = 4
"""Random numbers per call of philox and counter."""


class Policy(Protocol):
    """Turns random numbers into operations."""

    @property
    def draws(self) -> int:
        """Number of random numbers that a sample takes."""
        ...

    def table(self, u: Uniform, side: int) -> Floats:
        """Returns the operations of N samples of `side` pixels, float32 (N, K, 8).

        `u` is (draws, N).
        """
        ...


@dataclass(frozen=True)
class Augmenter:
    """Augments each resized crop, as a function of (seed, epoch, image, repeat, view)."""

    steps: tuple[tuple[int, Policy], ...]
    """Policies in their order of application, each with its stream of random numbers."""

    def table(self, seed: int, samples: Samples, side: int) -> Floats:
        """Returns the table for `custom_op.augment_ops`: float32 (N, K, 8), contiguous."""
        tables = []
        for stream, policy in self.steps:
            blocks = np.arange(-(-policy.draws // _WORDS))[:, None]
            u = unit(philox((seed, stream), samples.counter(blocks)))
            tables.append(policy.table(u.reshape(-1, len(samples))[: policy.draws], side))
        return np.ascontiguousarray(np.concatenate(tables, axis=1))


def build_augmenter(augment: AugmentConfig, mean: Sequence[float]) -> Augmenter | None:
    """Returns the augmenter with the built-in policy and erasing; None without both. `mean` is the
    mean of the data, from 0 to 1."""
    fill = tuple(float(round(255 * min(1.0, max(0.0, value)))) for value in mean)
    steps: list[tuple[int, Policy]] = []
    if (chosen := augment.policy()) is not None:
        steps.append((_POLICY_STREAM, _policy(chosen, fill)))
    if augment.erase:
        steps.append((_ERASE_STREAM, RandomErasing(policy_config.Erase(p=augment.erase), fill)))
    return Augmenter(tuple(steps)) if steps else None


def _policy(chosen: policy_config.Policy, fill: tuple[float, ...]) -> Policy:
    match chosen:
        case policy_config.Trivial():
            return TrivialAugment(chosen)
        case policy_config.RandTimm():
            return TimmRandAugment(chosen)
        case policy_config.Jitter():
            return ColorJitter(chosen)
        case policy_config.SimClr():
            return SimClr(chosen)
        case policy_config.Erase():
            return RandomErasing(chosen, fill)
    raise AssertionError(chosen)


# Colors and erasing


@dataclass(frozen=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue, in a random order.

    Factors are uniform from `max(0, 1 - x)` to `1 + x`, hue from `-x` to `x`, drawn as by
    `make_params` of ColorJitter in torchvision/transforms/v2/_color.py.
    """

    config: policy_config.Jitter
    draws: int = 8

    def table(self, u: Uniform, side: int) -> Floats:  # noqa: ARG002 - as Policy
        count, drawn = u.shape[1], []
        for one, name in zip(u[:3], ("brightness", "contrast", "saturation"), strict=True):
            width = getattr(self.config, name)
            factors = _between(one, (max(0.0, 1 - width), 1 + width))
            drawn.append(_rows(count, name, factors) if width else _rows(count, "identity"))
        hue = self.config.hue
        shifts = _between(u[3], (-hue, hue))
        drawn.append(_rows(count, "hue", shifts) if hue else _rows(count, "identity"))
        order = np.argsort(u[4:], axis=0).T
        return np.take_along_axis(np.stack(drawn, axis=1), order[:, :, None], axis=1)


@dataclass(frozen=True)
class SimClr:
    """Color distortion, grayscale and blur, each with its probability.

    Chen et al., "A Simple Framework for Contrastive Learning" (ICML 2020), appendix A: jitter of
    0.8, 0.8, 0.8 and 0.2 times the strength, and a blur over a tenth of the side whose standard
    deviation is 0.1 to 2 pixels.
    """

    config: policy_config.SimClr
    draws: int = 12

    def table(self, u: Uniform, side: int) -> Floats:
        chances, count, size = self.config, u.shape[1], 2 * (side // 20) + 1
        wide = 0.8 * chances.strength
        jitter = ColorJitter(
            policy_config.Jitter(wide, wide, wide, min(0.5, 0.2 * chances.strength))
        )
        gray = _rows(count, "grayscale")
        blur = _rows(count, "gaussian_blur", size, _between(u[11], (0.1, 2.0)))
        steps = (
            _applied(jitter.table(u[:8], side), u[8] < chances.jitter),
            _applied(gray, u[9] < chances.grayscale)[:, None],
            _applied(blur, u[10] < chances.blur)[:, None],
        )
        return np.concatenate(steps, axis=1)


_ERASE_ATTEMPTS = 10


@dataclass(frozen=True)
class RandomErasing:
    """Erases a rectangle of random area, aspect ratio and position, with the probability `p`.

    Zhong et al., "Random Erasing Data Augmentation" (AAAI 2020), drawn as by `make_params` of
    RandomErasing in torchvision/transforms/v2/_augment.py: up to ten attempts at a rectangle that
    is smaller than the image. torchvision's fills with 0 after normalization, which is the mean.
    """

    config: policy_config.Erase
    fill: tuple[float, ...]
    """Red, green and blue, from 0 to 255."""
    draws: int = 1 + 4 * _ERASE_ATTEMPTS

    def table(self, u: Uniform, side: int) -> Floats:
        flat, tall = self.config.ratio
        shares, ratios, tops, lefts = u[1:].reshape(4, _ERASE_ATTEMPTS, -1)
        area = side * side * _between(shares, self.config.scale)
        ratio = np.exp(_between(ratios, (np.log(flat), np.log(tall))))
        heights, widths = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
        fits = (heights < side) & (widths < side)
        first = (fits.argmax(axis=0), np.arange(u.shape[1]))
        height, width = heights[first], widths[first]
        top = np.floor(tops[first] * (side - height + 1))
        left = np.floor(lefts[first] * (side - width + 1))
        erased = _rows(u.shape[1], "erase", top, left, height, width, *self.fill)
        # In a tiny image, a rectangle may have no pixel.
        erases = (u[0] < self.config.p) & fits.any(axis=0) & (height > 0) & (width > 0)
        return _applied(erased, erases)[:, None]


# TrivialAugmentWide. The strengths are those of `_AUGMENTATION_SPACE` in
# torchvision/transforms/v2/_auto_augment.py, and are passed to operations as by its
# `_apply_image_or_video_transform`.

OPERATIONS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness"),
    *("saturation", "contrast", "sharpness", "posterize", "solarize", "autocontrast", "equalize"),
)
"""In torchvision's order."""
MAGNITUDES = 31
"""Number of strengths of each operation, from none to the strongest."""
MOVES = OPERATIONS[1:6]
"""Operations that move pixels."""
_FACTORS = ("brightness", "saturation", "contrast", "sharpness")
_SIGNED = (*MOVES, *_FACTORS)
_STRONGEST = 255


def moved_by(geometry: policy_config.Geometry) -> tuple[float, ...]:
    """Returns the parameters of a move that follow its amount: whether it is bilinear, and the fill
    color."""
    return float(geometry.interpolation == "bilinear"), *map(float, geometry.fill)


@dataclass(frozen=True)
class TrivialAugment:
    """TrivialAugmentWide: one operation of 14, its magnitude and its sign, all equally likely.

    Müller and Hutter, "TrivialAugment" (ICCV 2021).
    """

    config: policy_config.Trivial
    draws: int = 3

    def table(self, u: Uniform, side: int) -> Floats:  # noqa: ARG002 - as Policy
        cells = _all_strengths(moved_by(self.config))
        operation, strength, sign = _choice(u[0], len(cells)), _choice(u[1], MAGNITUDES), u[2]
        return cells[operation, strength, _choice(sign, 2)][:, None]


@cache
def _all_strengths(moved: tuple[float, ...]) -> Floats:
    """Returns the `strengths` of all operations: float32 (operations, magnitudes, 2, 8)."""
    return np.stack([strengths(name, moved) for name in OPERATIONS])


def strengths(operation: str, moved: tuple[float, ...]) -> Floats:
    """Returns an operation at each magnitude, with positive and negative sign: float32
    (31, 2, 8)."""
    cells = np.empty((MAGNITUDES, 2, COLUMNS), dtype=np.float32)
    for number, magnitude in enumerate(_magnitudes(operation)):
        for negated in (0, 1):
            signed = -magnitude if negated and operation in _SIGNED else magnitude
            cells[number, negated] = row(operation, *_parameters(operation, signed, moved))
    return cells


def _magnitudes(operation: str) -> Sequence[float]:
    if operation.startswith("shear"):
        return _evenly(0, 0.99)  # the tangent of the angle
    if operation.startswith("translate"):
        return _evenly(0, 32)  # pixels
    if operation == "rotate":
        return _evenly(0, 135)  # degrees
    if operation in _FACTORS:
        return _evenly(0, 0.99)  # distance of the factor from 1
    if operation == "posterize":
        return [round(8 - bits) for bits in _evenly(0, 6)]
    if operation == "solarize":
        return _evenly(1, 0)
    return [0.0] * MAGNITUDES


def _evenly(first: float, last: float) -> list[float]:
    """Returns evenly spaced strengths, rounded to float32 as in torchvision, which affects whole
    pixels."""
    values: list[float] = torch.linspace(first, last, MAGNITUDES).tolist()
    return values


def _parameters(operation: str, magnitude: float, moved: tuple[float, ...]) -> tuple[float, ...]:
    if operation in MOVES:
        amount = math.trunc(magnitude) if operation.startswith("translate") else magnitude
        return amount, *moved
    if operation in _FACTORS:
        return (1 + magnitude,)
    if operation == "posterize":
        return (magnitude,)
    if operation == "solarize":
        # The lowest whole level that torchvision inverts.
        return (math.ceil(np.float32(_STRONGEST * magnitude)),)
    return ()


# timm's RandAugment


@dataclass(frozen=True)
class TimmRandAugment:
    """`n` of 15 operations, drawn with replacement, each applied with the probability `p`, at a
    normally distributed magnitude and with a random sign.

    Draws as `rand_augment_transform` in timm/data/auto_augment.py, which DeiT uses, in whole
    pixels.
    """

    config: policy_config.RandTimm

    @property
    def draws(self) -> int:
        return 4 * self.config.n

    def table(self, u: Uniform, side: int) -> Floats:
        chosen, moved = self.config, moved_by(self.config)
        picks, applies, spreads, signs = u.reshape(4, chosen.n, -1)
        level = np.full_like(spreads, chosen.m)
        if chosen.mstd:
            level += chosen.mstd * torch.special.ndtri(torch.from_numpy(spreads)).numpy()
        magnitudes = timm_magnitudes(level.clip(0, 10), signs < 0.5, side, increasing=chosen.inc)
        picked = _choice(picks, len(magnitudes))
        cells = np.empty((*picked.shape, COLUMNS), dtype=np.float32)
        for number, (name, magnitude) in enumerate(magnitudes.items()):
            here = picked == number
            values = (*(each[here] for each in magnitude), *(moved if name in MOVES else ()))
            cells[here] = _rows(int(here.sum()), name, *values)
        return _applied(cells, applies < chosen.p).swapaxes(0, 1)


def timm_magnitudes(
    level: Uniform, negated: NDArray[np.bool_], side: int, *, increasing: bool
) -> dict[str, tuple[Uniform, ...]]:
    """Returns the first parameter of each of timm's 15 operations at `level` of 10; () without one.

    Follows the functions `_..._level_to_arg` in timm/data/auto_augment.py. Without `increasing`
    (`inc1`), a higher level posterizes and solarizes less, and takes contrast and the like from 0.1
    to 1.9.
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


# Rows of tables


def row(name: str, *values: float) -> Floats:
    """Returns an operation with all of its parameters, in the order of PARAMETERS: float32 (8,)."""
    assert len(values) == len(PARAMETERS[name]), name
    return np.array(_rows(1, name, *values)[0])


def _rows(count: int, name: str, *values: float | Uniform) -> Floats:
    """Returns an operation for `count` samples, float32 (count, 8). A parameter is a number, or has
    one for each sample."""
    cells = np.zeros((count, COLUMNS), dtype=np.float32)
    for column, value in enumerate((float(NUMBERS[name]), *values)):
        cells[:, column] = value
    return cells


def _choice(u: Uniform, count: int) -> NDArray[np.intp]:
    """Returns numbers from 0 to `count` - 1, equally likely."""
    return (u * count).astype(np.intp)


def _between(u: Uniform, pair: Sequence[float]) -> Uniform:
    """Returns numbers between the two of `pair`."""
    return pair[0] + u * (pair[1] - pair[0])


def _applied(cells: Floats, where: NDArray[np.bool_]) -> Floats:
    """Returns the rows where `where` is true, and the identity elsewhere."""
    shape = where.shape + (1,) * (cells.ndim - where.ndim)
    return np.where(where.reshape(shape), cells, np.float32(0))
