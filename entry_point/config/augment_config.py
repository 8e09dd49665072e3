"""Typed settings of the group `augment`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from entry_point.config.checking import check_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.policy_config import POLICIES, Policy
from entry_point.config.resolve import check_name
from entry_point.config.schema import SETTINGS, Share


@dataclass(config=SETTINGS)
class AugmentConfig:
    """Augmentation of training samples, after the random crop and flip and before MixUp."""

    name: str | None = None
    """A policy, drawn for each sample and applied by the decoder: `trivial` (TrivialAugmentWide),
    `rand_timm` (timm's RandAugment), `color_jitter`, `simclr` or `erase` (RandomErasing). Or the
    dotted path of a class or function, such as `torchvision.transforms.v2.AugMix` or your own,
    which is called once with `kwargs` and returns the function that `per` describes. null: none."""
    kwargs: dict[str, Any] = Field(default={})
    """Arguments of the policy, such as `augment.kwargs.m=12`, or of your own augmentation."""
    per: Literal["batch", "sample"] = "batch"
    """What the function of a dotted path takes and returns. `batch`: floats
    `(N, 3, image_size, image_size)`, normalized, on the device; a transform of torchvision treats
    all images of a batch alike, and most that change colors need `sample`. `sample`: uint8
    `(3, image_size, image_size)` and a `torch.Generator` to draw from, where images are decoded, at
    the cost of Python's interpreter lock; a transform of torchvision gets the image and draws from
    that generator."""
    erase: Share = 0.0
    """Probability of torchvision's RandomErasing after the policy, filled with `data.mean`."""

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name("augment.name", self.name, POLICIES)
        elif self.kwargs:
            raise ConfigError("augment.kwargs", self.kwargs, "needs augment.name")
        if self.per == "sample" and (self.name is None or self.name in POLICIES):
            message = "is for your own augmentation, a dotted path in augment.name; remove it"
            raise ConfigError("augment.per", self.per, message)
        if self.name == "erase" and self.erase:
            message = "augment.name=erase does that, too; set augment.kwargs.p instead"
            raise ConfigError("augment.erase", self.erase, message)
        self.policy()

    def policy(self) -> Policy | None:
        """Returns the known policy; None if there is none or it is your own."""
        if self.name not in POLICIES:
            return None
        return check_config(self.kwargs, POLICIES[self.name], "augment.kwargs")

    @property
    def on_samples(self) -> bool:
        """Whether the decoder does any of it."""
        return self.name in POLICIES or self.erase > 0 or self.per == "sample"

    @property
    def own(self) -> bool:
        """Whether `name` is a dotted path."""
        return self.name is not None and self.name not in POLICIES

    def describe(self) -> str:
        """Returns one line for the log; empty without augmentation."""
        parts = [self.name] if self.name else []
        if self.own:
            sample = ", on each sample: Python runs for each, which costs decoding speed"
            parts[0] += sample if self.per == "sample" else ", on each batch"
        if self.erase:
            parts.append(f"erase {self.erase:g} of the samples")
        return "; ".join(parts)
