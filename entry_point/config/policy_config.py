"""The arguments of the policies that `augment.name` knows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from entry_point.config.config_errors import ConfigError
from entry_point.config.schema import SETTINGS, Bool, Float, Int, Positive, Share

_WIDEST = 100
"""Largest jitter; torchvision's functions overflow at factors of 1e36."""


@dataclass(config=SETTINGS)
class Policy:
    """The base class of the arguments of policies."""


@dataclass(config=SETTINGS)
class Geometry(Policy):
    """How operations that move pixels read and fill the image."""

    interpolation: Literal["nearest", "bilinear"] = "nearest"
    fill: list[Annotated[Int, Field(ge=0, le=255)]] = Field(
        default=[0, 0, 0], min_length=3, max_length=3
    )


@dataclass(config=SETTINGS)
class Trivial(Geometry):
    """TrivialAugmentWide: one operation of a random strength."""


@dataclass(config=SETTINGS)
class RandTimm(Geometry):
    """timm's RandAugment: `n` operations of the strength `m` of 10 with standard deviation `mstd`.

    The names are those of timm's string, `rand-m9-n2-p0.5-mstd0.5-inc1`; so are the defaults.
    """

    n: Int = Field(default=2, ge=1, le=16)
    m: Int = Field(default=10, ge=0, le=10)
    p: Share = 0.5
    mstd: Float = Field(default=0.0, ge=0, le=100)
    inc: Bool = False


@dataclass(config=SETTINGS)
class Jitter(Policy):
    """ColorJitter. torchvision has no defaults; 0.4 is what the first ResNet recipes used."""

    brightness: Float = Field(default=0.4, ge=0, le=_WIDEST)
    contrast: Float = Field(default=0.4, ge=0, le=_WIDEST)
    saturation: Float = Field(default=0.4, ge=0, le=_WIDEST)
    hue: Float = Field(default=0.0, ge=0, le=0.5)


@dataclass(config=SETTINGS)
class SimClr(Policy):
    """Color distortion of `strength`, grayscale and blur, each with its probability."""

    strength: Float = Field(default=1.0, ge=0, le=2.5)
    jitter: Share = 0.8
    grayscale: Share = 0.2
    blur: Share = 0.5


@dataclass(config=SETTINGS)
class Erase(Policy):
    """RandomErasing with the probability `p`; shares of the area, and height/width."""

    p: Share = 0.5
    scale: list[Share] = Field(default=[0.02, 0.33], min_length=2, max_length=2)
    ratio: list[Positive] = Field(default=[0.3, 3.3], min_length=2, max_length=2)

    def __post_init__(self) -> None:
        for name in ("scale", "ratio"):
            pair = getattr(self, name)
            if pair[0] > pair[1]:
                raise ConfigError(f"augment.kwargs.{name}", pair, "must be [smallest,largest]")


POLICIES: dict[str, type[Policy]] = {
    "trivial": Trivial,
    "rand_timm": RandTimm,
    "color_jitter": Jitter,
    "simclr": SimClr,
    "erase": Erase,
}
