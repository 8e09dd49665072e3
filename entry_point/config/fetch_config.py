"""Typed settings of `make fetch-weights`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING

from entry_point.config.config_errors import ConfigError

SUFFIXES = (".safetensors", ".pt", ".pth")


@dataclass
class FetchedModel:
    """The model whose weights are wanted."""

    name: str = MISSING
    """A classification model of torchvision, or `timm/NAME`, also with the tag of one of several
    published weights, as in `timm/resnet18.a1_in1k`."""


@dataclass
class FetchConfig:
    """Downloading published weights, for `model.weights`. The job itself downloads nothing."""

    output: str
    """File to write: `*.safetensors`, or `*.pt` or `*.pth` for a torch state dict."""
    weights: str = "DEFAULT"
    """torchvision: which of the published weights, such as `IMAGENET1K_V1`."""
    model: FetchedModel = field(default_factory=FetchedModel)

    def __post_init__(self) -> None:
        if Path(self.output).suffix not in SUFFIXES:
            must = f"must end with one of {', '.join(SUFFIXES)}"
            raise ConfigError("output", self.output, must)
        if self.model.name.startswith("timm/") and self.weights != "DEFAULT":
            must = f"is for torchvision's models; use model.name={self.model.name}.TAG instead"
            raise ConfigError("weights", self.weights, must)
