"""Policies that change colors: ColorJitter and SimCLR's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from entry_point.config import policy_config
from entry_point.data.plan.augment.policy import (
    Floats,
    Uniform,
    applied,
    between,
    row,
    rows,
)

_SIGMAS = (0.1, 2.0)
"""Standard deviations of SimCLR's blur in pixels."""


@dataclass(frozen=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue, in a random order.

    Factors are uniform from `max(0, 1 - x)` to `1 + x`, hue from `-x` to `x`, as `make_params` of
    ColorJitter in torchvision/transforms/v2/_color.py draws them.
    """

    brightness: float
    contrast: float
    saturation: float
    hue: float
    draws: int = 8

    def table(self, u: Uniform, side: int) -> Floats:  # noqa: ARG002 - as Policy
        widths = {name: getattr(self, name) for name in ("brightness", "contrast", "saturation")}
        drawn = [
            rows(name, between(one, (max(0.0, 1 - width), 1 + width)))
            if width
            else rows("identity", 0 * one)
            for one, (name, width) in zip(u[:3], widths.items(), strict=True)
        ]
        shift = between(u[3], (-self.hue, self.hue))
        drawn.append(rows("hue", shift) if self.hue else rows("identity", 0 * shift))
        order = np.argsort(u[4:], axis=0).T
        return np.take_along_axis(np.stack(drawn, axis=1), order[:, :, None], axis=1)


@dataclass(frozen=True)
class SimClr:
    """Color distortion, grayscale and blur, each with its probability.

    Chen et al., "A Simple Framework for Contrastive Learning" (ICML 2020), appendix A: jitter of
    0.8, 0.8, 0.8 and 0.2 times the strength, and a blur over a tenth of the side.
    """

    config: policy_config.SimClr
    draws: int = 12

    def table(self, u: Uniform, side: int) -> Floats:
        config, size = self.config, 2 * (side // 20) + 1
        wide = 0.8 * config.strength
        jitter = ColorJitter(wide, wide, wide, min(0.5, 0.2 * config.strength))
        gray = np.broadcast_to(row("grayscale"), (u.shape[1], 8))
        blur = rows("gaussian_blur", size, between(u[11], _SIGMAS))
        steps = (
            applied(jitter.table(u[:8], side), u[8] < config.jitter),
            applied(gray, u[9] < config.grayscale)[:, None],
            applied(blur, u[10] < config.blur)[:, None],
        )
        return np.concatenate(steps, axis=1)
