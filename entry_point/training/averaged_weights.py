"""An exponential moving average of a model's weights, with batch statistics to match."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from entry_point.config.config_errors import ConfigError
from entry_point.training.checkpoints import load_state

_Pairs = list[tuple[list[torch.Tensor], list[torch.Tensor]]]
"""(averages, values) of tensors that one kernel can update together: of one device and type."""
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class AveragedWeights:
    """`model` follows `source`: parameters are averaged, statistics estimated, buffers copied.

    The decay grows with the number n of updates as n / (n + 9), up to `decay`: the average then
    covers the last tenth of the steps, and a short run's does not remember the initial weights
    (the ramp of TensorFlow's ExponentialMovingAverage).

    Batch normalization's running statistics belong to the weights that made them; neither copies
    nor averages of them fit the averaged weights. `measure_statistics` makes them, before the
    averages are used. Those of a norm that `source` keeps in eval mode are constants, which are
    copied.

    torch's `AveragedModel` copies its counter to the GPU at every step, which waits for the device,
    and its `update_bn` trains norms that are kept in eval mode, too.
    """

    def __init__(self, source: nn.Module, decay: float, infinite: Collection[str] = ()) -> None:
        """`infinite` names the weights that hold infinity, which has no average."""
        self.model = _copy(source, decay).requires_grad_(False).eval()
        self._decay, self._updates = decay, 0
        modules = list(zip(self.model.modules(), source.modules(), strict=True))
        self._norms = [
            own
            for own, other in modules
            if isinstance(own, _NormBase) and own.track_running_stats and other.training
        ]
        parameters = list(zip(self.model.named_parameters(), source.parameters(), strict=True))
        self._parameters = _pairs((own, value) for (_, own), value in parameters)
        self._infinite = [(own, value) for (name, own), value in parameters if name in infinite]
        self._copied = [
            (own, other, name)
            for own, other in modules
            for name, _ in own.named_buffers(recurse=False)
            if own not in self._norms or name not in _STATISTICS
        ]

    @torch.no_grad()
    def update(self) -> None:
        """Take the source's weights after one step; the first time, copy them."""
        decay = min(self._decay, self._updates / (self._updates + 9))
        for averages, values in self._parameters:
            if averages[0].dtype.is_floating_point:
                torch._foreach_lerp_(averages, values, 1 - decay)
            else:
                torch._foreach_copy_(averages, values)
        for average, value in self._infinite:  # infinity has become NaN
            average.copy_(torch.where(average.isfinite(), average, value))
        # Looked up at each step: a model may assign another tensor to a buffer.
        buffers = ((getattr(own, name), getattr(other, name)) for own, other, name in self._copied)
        for copies, values in _pairs(buffers):
            torch._foreach_copy_(copies, values)
        self._updates += 1

    @property
    def has_statistics(self) -> bool:
        """Whether the model has batch statistics of its own."""
        return bool(self._norms)

    @torch.no_grad()
    def measure_statistics(self, batches: Iterable[torch.Tensor]) -> None:
        """Replace the batch statistics by their mean over batches `(N, 3, S, S)`, a forward pass
        each, as torch's `update_bn` does."""
        momenta = [norm.momentum for norm in self._norms]
        for norm in self._norms:
            norm.reset_running_stats()
            norm.train()
        for number, images in enumerate(batches, 1):
            for norm in self._norms:
                norm.momentum = 1 / number
            self.model(images)
        for norm, momentum in zip(self._norms, momenta, strict=True):
            norm.eval().momentum = momentum

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps."""
        return {"ema": self.model.state_dict(), "ema_updates": self._updates}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; other keys are ignored."""
        load_state(self.model, state["ema"])
        self._updates = state["ema_updates"]


def _copy(source: nn.Module, decay: float) -> nn.Module:
    """Returns a copy of the model. Raises ConfigError if it has a part that Python cannot copy."""
    try:
        return copy.deepcopy(source)
    except Exception as error:  # a module may raise anything while it is copied
        reason = str(error).partition("\n")[0].partition(". ")[0]
        message = (
            f"averages a copy of the model, and {type(source).__name__} cannot be copied "
            f"({reason}); give it a __deepcopy__, use parametrizations.weight_norm in the place of "
            "weight_norm, or set null"
        )
        raise ConfigError("optim.ema_decay", decay, message) from error


def _pairs(tensors: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> _Pairs:
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]]
    groups = defaultdict(lambda: ([], []))
    for average, value in tensors:
        some_averages, some_values = groups[value.device, value.dtype]
        some_averages.append(average)
        some_values.append(value)
    return list(groups.values())
