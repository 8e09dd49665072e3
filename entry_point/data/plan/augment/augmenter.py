"""The augmentation table of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from entry_point.config import policy_config as config
from entry_point.config.augment_config import AugmentConfig
from entry_point.data.plan.augment.automatic import (
    AutoAugment,
    RandAugment,
    TimmRandAugment,
    TrivialAugment,
)
from entry_point.data.plan.augment.colors import ColorJitter, SimClr, ThreeAugment
from entry_point.data.plan.augment.erasing import RandomErasing
from entry_point.data.plan.augment.policy import Floats, Policy
from entry_point.data.plan.augment.strengths import Move
from entry_point.data.plan.philox import philox, unit
from entry_point.data.plan.samples import Samples

_POLICY_STREAM, _ERASE_STREAM = 6, 7
_WORDS = 4


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
    """The known policy and the erasing; None without both. `mean` is of the data, from 0 to 1."""
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
        case config.Rand():
            return RandAugment(_move(chosen), chosen.n, chosen.m)
        case config.RandTimm():
            return TimmRandAugment(_move(chosen), chosen)
        case config.Auto():
            return AutoAugment(_move(chosen))
        case config.Jitter():
            return ColorJitter(chosen.brightness, chosen.contrast, chosen.saturation, chosen.hue)
        case config.SimClr():
            return SimClr(chosen)
        case config.Three():
            return ThreeAugment(chosen.jitter)
        case config.Erase(p, [low, high], [flat, tall]):
            return RandomErasing(p, (low, high), (flat, tall), fill)
    raise AssertionError(chosen)


def _move(chosen: config.Geometry) -> Move:
    return Move(chosen.interpolation == "bilinear", tuple(chosen.fill))
