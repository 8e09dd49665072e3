"""The augmentation table of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from entry_point.config import policy_config as config
from entry_point.config.augment_config import AugmentConfig
from entry_point.data.plan.augment.automatic import (
    Move,
    TimmRandAugment,
    TrivialAugment,
)
from entry_point.data.plan.augment.colors import ColorJitter, SimClr
from entry_point.data.plan.augment.policy import Floats, Policy, Uniform, applied, between, rows
from entry_point.data.plan.philox import philox, unit
from entry_point.data.plan.samples import Samples

_POLICY_STREAM, _ERASE_STREAM = 6, 7
_WORDS = 4
_ATTEMPTS = 10


@dataclass(frozen=True)
class Augmenter:
    """What is done to each resized crop, a function of (seed, epoch, image, repeat, view)."""

    steps: tuple[tuple[int, Policy], ...]
    """Policies in the order in which they apply, each with its stream of random numbers."""

    def table(self, seed: int, samples: Samples, side: int) -> Floats:
        """As `custom_op.augment_ops` describes it: float32 (N, K, 8), contiguous."""
        tables = []
        for stream, policy in self.steps:
            blocks = np.arange(-(-policy.draws // _WORDS))[:, None]
            u = unit(philox((seed, stream), samples.counter(blocks)))
            tables.append(policy.table(u.reshape(-1, len(samples))[: policy.draws], side))
        return np.ascontiguousarray(np.concatenate(tables, axis=1))


def build_augmenter(augment: AugmentConfig, mean: Sequence[float]) -> Augmenter | None:
    """Returns the known policy and the erasing; None without both. `mean` is of the data, from 0 to
    1."""
    red, green, blue = (round(255 * min(1.0, max(0.0, value))) for value in mean)
    fill = (red, green, blue)
    steps: list[tuple[int, Policy]] = []
    if (chosen := augment.policy()) is not None:
        steps.append((_POLICY_STREAM, _policy(chosen, fill)))
    if augment.erase:
        erasing = _policy(config.Erase(p=augment.erase), fill)
        steps.append((_ERASE_STREAM, erasing))
    return Augmenter(tuple(steps)) if steps else None


def _policy(chosen: config.Policy, fill: tuple[int, int, int]) -> Policy:
    match chosen:
        case config.Trivial():
            return TrivialAugment(_move(chosen))
        case config.RandTimm():
            return TimmRandAugment(_move(chosen), chosen)
        case config.Jitter():
            return ColorJitter(chosen.brightness, chosen.contrast, chosen.saturation, chosen.hue)
        case config.SimClr():
            return SimClr(chosen)
        case config.Erase(p, [low, high], [flat, tall]):
            return RandomErasing(p, (low, high), (flat, tall), fill)
    raise AssertionError(chosen)


def _move(chosen: config.Geometry) -> Move:
    return Move(chosen.interpolation == "bilinear", tuple(chosen.fill))


@dataclass(frozen=True)
class RandomErasing:
    """A rectangle of a random share of the area, ratio and place; with the probability `p`.

    Zhong et al., "Random Erasing Data Augmentation" (AAAI 2020), drawn as by `make_params` of
    RandomErasing in torchvision/transforms/v2/_augment.py: up to ten attempts at a rectangle that
    is smaller than the image. torchvision's erases after normalization with 0, which is the mean.
    """

    p: float
    scale: tuple[float, float]
    ratio: tuple[float, float]
    """Smallest and largest height/width."""
    fill: tuple[int, int, int]
    draws: int = 1 + 4 * _ATTEMPTS

    def table(self, u: Uniform, side: int) -> Floats:
        shares, ratios, tops, lefts = u[1:].reshape(4, _ATTEMPTS, -1)
        area = side * side * between(shares, self.scale)
        ratio = np.exp(between(ratios, (np.log(self.ratio[0]), np.log(self.ratio[1]))))
        heights, widths = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
        fits = (heights < side) & (widths < side)
        first = (fits.argmax(axis=0), np.arange(u.shape[1]))
        height, width = heights[first], widths[first]
        top = np.floor(tops[first] * (side - height + 1))
        left = np.floor(lefts[first] * (side - width + 1))
        erased = rows("erase", top, left, height, width, *map(float, self.fill))
        # A tiny image can get a rectangle without a pixel.
        erases = (u[0] < self.p) & fits.any(axis=0) & (height > 0) & (width > 0)
        return applied(erased, erases)[:, None]
