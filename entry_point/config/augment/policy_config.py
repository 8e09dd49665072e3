"""The arguments of the policies that `augment.name` knows."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from entry_point.config.config_errors import ConfigError, shown
from entry_point.config.hydra_errors import explain
from entry_point.config.knob import check_knobs, knob

MAGNITUDES = 31
"""Strengths that `trivial` and `rand` choose from, as torchvision's default."""
_KEY = "augment.kwargs"


@dataclass
class Policy:
    """What all policies have in common: their knobs are checked."""

    def __post_init__(self) -> None:
        check_knobs(self, _KEY)


@dataclass
class Geometry(Policy):
    """How operations that move pixels read and fill the image."""

    interpolation: str = knob("nearest", choices=("nearest", "bilinear"))
    fill: list[int] = knob([0, 0, 0], length=3, least=0, most=255)


@dataclass
class Trivial(Geometry):
    """TrivialAugmentWide: one operation of a random strength."""


@dataclass
class Rand(Geometry):
    """torchvision's RandAugment: `n` operations of the strength `m` of 30."""

    n: int = knob(2, least=1, most=16)
    m: int = knob(9, least=0, most=MAGNITUDES - 1)


@dataclass
class RandTimm(Geometry):
    """timm's RandAugment: `n` operations of the strength `m` of 10 with standard deviation `mstd`.

    The names are those of timm's string, `rand-m9-n2-p0.5-mstd0.5-inc1`; so are the defaults.
    """

    n: int = knob(2, least=1, most=16)
    m: int = knob(10, least=0, most=10)
    p: float = knob(0.5, least=0, most=1)
    mstd: float = knob(0.0, least=0, most=100)
    inc: bool = False


@dataclass
class Auto(Geometry):
    """AutoAugment's policy for ImageNet."""


@dataclass
class Jitter(Policy):
    """ColorJitter. torchvision has no defaults; 0.4 is what the first ResNet recipes used."""

    brightness: float = knob(0.4, least=0)
    contrast: float = knob(0.4, least=0)
    saturation: float = knob(0.4, least=0)
    hue: float = knob(0.0, least=0, most=0.5)


@dataclass
class SimClr(Policy):
    """Color distortion of `strength`, grayscale and blur, each with its probability."""

    strength: float = knob(1.0, least=0, most=2.5)
    jitter: float = knob(0.8, least=0, most=1)
    grayscale: float = knob(0.2, least=0, most=1)
    blur: float = knob(0.5, least=0, most=1)


@dataclass
class Three(Policy):
    """DeiT III's 3-Augment: grayscale, solarize or blur, then color jitter."""

    jitter: float = knob(0.3, least=0)


@dataclass
class Erase(Policy):
    """RandomErasing with the probability `p`; shares of the area, and height/width."""

    p: float = knob(0.5, least=0, most=1)
    scale: list[float] = knob([0.02, 0.33], length=2, least=0, most=1)
    ratio: list[float] = knob([0.3, 3.3], length=2, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("scale", "ratio"):
            pair = getattr(self, name)
            if pair[0] > pair[1]:
                raise ConfigError(f"{_KEY}.{name}", pair, "must be [smallest,largest]")


POLICIES: dict[str, type[Policy]] = {
    "trivial": Trivial,
    "rand": Rand,
    "rand_timm": RandTimm,
    "auto": Auto,
    "color_jitter": Jitter,
    "simclr": SimClr,
    "three": Three,
    "erase": Erase,
}


def policy(name: str, kwargs: dict[str, object]) -> Policy:
    """The policy `name` with these arguments. Raises ConfigError."""
    group, key = _KEY.split(".")
    schema = OmegaConf.create({group: {key: OmegaConf.structured(POLICIES[name])}})
    try:
        merged = OmegaConf.merge(schema, {group: {key: kwargs}})
        made = OmegaConf.to_object(OmegaConf.select(merged, _KEY))
    except OmegaConfBaseException as error:
        typed = [f"{_KEY}.{argument}={shown(value)}" for argument, value in kwargs.items()]
        raise explain(error, typed) from error
    assert isinstance(made, Policy)
    return made
