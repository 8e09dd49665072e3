"""Applies your own augmentation to each decoded training image (`augment.per=sample`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from entry_point.config.augment_config import AugmentConfig
from entry_point.config.config_errors import ConfigError
from entry_point.config.resolve import call, resolve
from entry_point.data.plan.philox import philox
from entry_point.data.plan.samples import Ints, Samples

SampleAugmentation = Callable[[Tensor, torch.Generator], Tensor]
"""uint8 (3, S, S) -> the same shape and type.

It must draw from this generator only, because several threads call it. The generator is seeded from
(seed, epoch, image, repeat, view), so that all engines and a resumed run draw the same numbers.
"""

_STREAM = 8
_SEED = (1 << 63) - 1
_RANDOM = frozenset(
    (
        *("rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal", "poisson"),
        *("uniform_", "normal_", "random_", "bernoulli_", "exponential_", "_sample_dirichlet"),
    )
)
"""Random functions of torch that take a generator as an argument."""
_LIKE = {"rand_like": Tensor.uniform_, "randn_like": Tensor.normal_}


@dataclass
class OwnAugmentation:
    """Applies your own function to each sample of a batch, in place."""

    augment: AugmentConfig
    _function: SampleAugmentation = field(init=False)

    def __post_init__(self) -> None:
        name = self.augment.name
        assert name is not None
        build: Callable[..., object] = resolve("augment.name", name, {})
        made = call("augment.kwargs", build, self.augment.kwargs)
        if not callable(made):
            message = f"must return a function from an image to an image, not {type(made).__name__}"
            raise ConfigError("augment.name", name, message)
        self._function = partial(_transformed, made) if is_of_torchvision(made) else made

    def __reduce__(self) -> tuple[object, ...]:
        # A child process builds the function again, because it need not be picklable.
        return OwnAugmentation, (self.augment,)

    def __call__(self, images: Tensor, samples: Samples, seed: int, skip: Ints) -> None:
        """Augment `images`, except the undefined rows `skip`. Raises ConfigError if the
        function returns another shape or type."""
        words = philox((seed, _STREAM), samples.counter(0))[0].tolist()
        for i in set(range(len(images))).difference(skip.tolist()):
            generator = torch.Generator().manual_seed(words[i] & _SEED)
            images[i] = self._changed(images[i], generator)

    def _changed(self, image: Tensor, generator: torch.Generator) -> Tensor:
        changed = self._function(image, generator)
        if isinstance(changed, Tensor):
            if changed.shape == image.shape and changed.dtype == image.dtype:
                return changed
            found = f"{tuple(changed.shape)} of {changed.dtype}"
        else:
            found = type(changed).__name__
        message = f"must return an image {tuple(image.shape)} of {image.dtype}, not {found}"
        raise ConfigError("augment.name", self.augment.name, message)


def is_of_torchvision(thing: object) -> bool:
    """Returns whether `thing` is, or derives from, a transform of torchvision (v1 or v2)."""
    modules = (kind.__module__ for kind in type(thing).__mro__)
    return any(module.startswith("torchvision.transforms.") for module in modules)


def _transformed(transform: Any, image: Tensor, generator: torch.Generator) -> Any:
    with _DrawsFrom(generator):
        return transform(image)


class _DrawsFrom(TorchFunctionMode):
    """Makes torch's functions draw from this generator instead of the default one.

    Affects only this thread: others draw as well, such as the training step on a CPU.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        if name in _LIKE:
            return _LIKE[name](torch.empty_like(*args, **kwargs), generator=self._generator)
        if name in _RANDOM:
            kwargs = {"generator": self._generator, **kwargs}
        return function(*args, **kwargs)
