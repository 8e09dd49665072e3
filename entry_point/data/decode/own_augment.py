"""`augment.per=sample`: your own augmentation of each decoded training image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from entry_point.config.augment_config import AugmentConfig
from entry_point.config.config_errors import ConfigError
from entry_point.config.resolve import call, resolve
from entry_point.data.decode.allocation import Allocate
from entry_point.data.decode.made_images import MadeImages, MakeImages
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.plan.philox import in_view, philox
from entry_point.data.sources.source import Source
from entry_point.data.spans import span

SampleAugmentation = Callable[[Tensor, torch.Generator], Tensor]
"""uint8 (3, S, S) -> the same shape and type.

It draws from the generator alone: several threads call it, and the generator is seeded by (seed,
epoch, sample index, repeat, view), so that every engine and a resumed run draw the same.
"""

_STREAM = 8
_SEED_BITS = np.uint64(63)


@dataclass
class OwnAugmented:
    """Another maker's images, of which your own function changes those for training."""

    make_images: MakeImages
    augment: AugmentConfig
    _function: SampleAugmentation = field(init=False)

    def __post_init__(self) -> None:
        self._function = _build(self.augment)

    def __reduce__(self) -> tuple[object, ...]:
        # A child process builds its own: what your code returns need not be picklable.
        return OwnAugmented, (self.make_images, self.augment)

    def __call__(
        self, source: Source, planner: CropPlanner, epoch: int, indices: Ints, allocate: Allocate
    ) -> MadeImages:
        """See MakeImages."""
        made = self.make_images(source, planner, epoch, indices, allocate)
        if not planner.train:
            return made
        repeats = np.array(0) if planner.repeats is None else planner.repeats
        with span("augment"):
            # One row per view, each as long as the batch.
            counter = (indices, epoch, in_view(planner.view_numbers())[..., None], repeats)
            words = philox((planner.seed, _STREAM), counter)[0].T
            seeds = (words & ((1 << _SEED_BITS) - 1)).reshape(made.images.shape[:-3])
            for at in np.ndindex(seeds.shape):
                if at[0] not in made.damage:
                    generator = torch.Generator().manual_seed(int(seeds[at]))
                    made.images[at] = self._changed(made.images[at], generator)
        return made

    def _changed(self, image: Tensor, generator: torch.Generator) -> Tensor:
        changed = self._function(image, generator)
        if isinstance(changed, Tensor):
            if changed.shape == image.shape and changed.dtype == image.dtype:
                return changed
            found = f"{tuple(changed.shape)} of {changed.dtype}"
        else:
            found = type(changed).__name__
        must = f"must return an image {tuple(image.shape)} of {image.dtype}, not {found}"
        raise ConfigError("augment.name", self.augment.name, must)


def _build(config: AugmentConfig) -> SampleAugmentation:
    assert config.name is not None
    build: Callable[..., object] = resolve("augment.name", config.name, {})
    made = call("augment.kwargs", build, config.kwargs)
    if not callable(made):
        must = f"must return a function from an image to an image, not {type(made).__name__}"
        raise ConfigError("augment.name", config.name, must)
    function: SampleAugmentation = made
    return function
