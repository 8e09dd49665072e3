"""RandomErasing: a rectangle of one color."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from entry_point.data.plan.augment.policy import Floats, Uniform, applied, between, rows

_ATTEMPTS = 10


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
