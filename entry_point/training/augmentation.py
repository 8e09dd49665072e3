"""`augment.per=batch`: your own augmentation of training batches, on the device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from entry_point.config.augment_config import AugmentConfig
from entry_point.config.config_errors import ConfigError
from entry_point.config.resolve import call, resolve

Augmentation = Callable[[torch.Tensor], torch.Tensor]
"""float `(N, 3, S, S)` -> the same shape and type, both on the device.

It may draw from torch's, NumPy's and Python's generators. They are seeded before each step, so that
a resumed run draws the same.
"""


def build_augmentation(config: AugmentConfig) -> Augmentation | None:
    """Your own augmentation of batches; None without one. Raises ConfigError."""
    if config.name is None or not config.own or config.per != "batch":
        return None
    build: Callable[..., object] = resolve("augment.name", config.name, {})
    made = call("augment.kwargs", build, config.kwargs)
    if not callable(made):
        must = f"must return a function from images to images, not {type(made).__name__}"
        raise ConfigError("augment.name", config.name, must)
    name, augment = config.name, made

    def checked(images: torch.Tensor) -> torch.Tensor:
        augmented = augment(images)
        if not isinstance(augmented, torch.Tensor) or augmented.shape != images.shape:
            found = getattr(augmented, "shape", type(augmented).__name__)
            must = f"must return images of the shape {tuple(images.shape)}, not {found}"
            raise ConfigError("augment.name", name, must)
        return augmented

    return checked
