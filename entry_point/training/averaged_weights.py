"""An exponential moving average of a model's weights."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from entry_point.config.config_errors import ConfigError

_Pairs = list[tuple[list[torch.Tensor], list[torch.Tensor]]]
"""(averages, values) of tensors that one kernel can update together: of one device and type."""


class AveragedWeights:
    """`model` follows `source`: its parameters are averaged, its buffers are copied.

    As torch's `AveragedModel` with `get_ema_multi_avg_fn`, whose counter is a tensor that is read
    from the device at every step, and which copies buffers one by one.
    """

    def __init__(self, source: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(source).requires_grad_(False)
        self._decay, self._updates = decay, 0
        self._parameters = _pairs(self.model.parameters(), source.parameters())
        self._buffers = _pairs(self.model.buffers(), source.buffers())

    @torch.no_grad()
    def update(self) -> None:
        """Take the source's weights after one step; the first time, copy them."""
        for averages, values in self._parameters:
            if self._updates and averages[0].dtype.is_floating_point:
                torch._foreach_lerp_(averages, values, 1 - self._decay)
            else:
                torch._foreach_copy_(averages, values)
        for copies, values in self._buffers:
            torch._foreach_copy_(copies, values)
        self._updates += 1

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"ema": self.model.state_dict(), "ema_updates": self._updates}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; other keys are ignored. Raises ConfigError."""
        if "ema_updates" not in state:
            must = (
                "the checkpoint holds the averages of an earlier version of this code; use another "
                "name, or set trainer.resume=false to restart from scratch"
            )
            raise ConfigError("optim.ema_decay", self._decay, must)
        self.model.load_state_dict(state["ema"])
        self._updates = state["ema_updates"]


def _pairs(averages: Iterable[torch.Tensor], values: Iterable[torch.Tensor]) -> _Pairs:
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]]
    groups = defaultdict(lambda: ([], []))
    for average, value in zip(averages, values, strict=True):
        some_averages, some_values = groups[value.device, value.dtype]
        some_averages.append(average)
        some_values.append(value)
    return list(groups.values())
