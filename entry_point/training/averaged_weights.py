"""An exponential moving average of a model's weights, with batch statistics to match."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from entry_point.config.config_errors import ConfigError
from entry_point.training.checkpoints import load_state

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class AveragedWeights:
    """Keeps the average of `source` in `model`: trainable weights are averaged, others copied.

    The decay grows with the number n of updates as n / (n + 9), up to `decay` (the ramp of
    TensorFlow's ExponentialMovingAverage). The average therefore covers about the last tenth of the
    steps, and never includes the initial weights, even in a short run.

    Running statistics of batch normalization belong to the weights that produced them: neither
    copies nor averages of them fit the averaged weights. `measure_statistics` computes them before
    the average is used. Norms that `source` keeps in eval mode have constants, which are copied.

    torch's `AveragedModel` copies its counter to the GPU at every step, which waits for the device,
    and its `update_bn` also changes norms that are kept in eval mode.
    """

    def __init__(self, source: nn.Module, decay: float) -> None:
        self.model = _copy(source, decay).requires_grad_(False)
        self.model.eval()  # not chained: your model's eval() may return None
        self._decay, self._updates = decay, 0
        modules = list(zip(self.model.modules(), source.modules(), strict=True))
        self._norms = [
            own
            for own, other in modules
            if isinstance(own, _NormBase) and own.track_running_stats and other.training
        ]
        self._parameters = [*zip(self.model.parameters(), source.parameters(), strict=True)]
        self._buffers = [
            (own, other, name)
            for own, other in modules
            for name, _ in own.named_buffers(recurse=False)
            if own not in self._norms or name not in _STATISTICS
        ]

    @torch.no_grad()
    def update(self) -> None:
        """Add the source's weights to the average after a step; the first time, copy them.

        All weights are averaged in one call and all buffers copied in another; neither waits for
        the device.
        """
        trained = [pair for pair in self._parameters if pair[1].requires_grad]
        copied = [pair for pair in self._parameters if not pair[1].requires_grad]
        # Looked up at each step, because a model may assign a new tensor to a buffer.
        copied += ((getattr(own, name), getattr(other, name)) for own, other, name in self._buffers)
        decay = min(self._decay, self._updates / (self._updates + 9))
        if trained:
            averages, values = zip(*trained, strict=True)
            torch._foreach_lerp_(averages, values, 1 - decay)
        if copied:
            copies, values = zip(*copied, strict=True)
            torch._foreach_copy_(copies, values)
        self._updates += 1

    @property
    def has_statistics(self) -> bool:
        """Whether the model has batch statistics to measure."""
        return bool(self._norms)

    @torch.no_grad()
    def measure_statistics(self, batches: Iterable[torch.Tensor]) -> None:
        """Replace the batch statistics by their mean over `batches` `(N, 3, S, S)`, with a forward
        pass for each, as torch's `update_bn` does."""
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
        """Returns the state that a checkpoint keeps."""
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
