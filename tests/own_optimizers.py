"""Small custom optimizers and schedules for the tests."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch


class Sign(torch.optim.Optimizer):
    """Moves each weight by the rate, and counts its steps in its state."""

    def __init__(self, params: Iterable[Any], lr: float, scale: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "scale": scale})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.state[weight]["steps"] = self.state[weight].get("steps", 0) + 1
                    weight -= group["lr"] * group["scale"] * weight.grad.sign()


def by_layer(params: Iterable[dict[str, Any]], lr: float) -> torch.optim.Optimizer:
    """Half the rate for each layer further from the output, 6."""
    groups = [
        {**group, "params": [(name, weight)], "lr": lr * 0.5 ** (6 - int(name.split(".")[0]))}
        for group in params
        for name, weight in group["params"]
    ]
    return torch.optim.SGD(groups, lr=lr)


def no_optimizer(params: Iterable[Any], lr: float) -> tuple[Iterable[Any], float]:
    return params, lr


def falling(epoch: float, epochs: int, power: float = 1.0) -> float:
    """From one to zero at the end."""
    return (1 - epoch / epochs) ** power


def rising(epoch: float, _epochs: int) -> float:
    """From below zero, so that the first steps would climb the loss."""
    return epoch - 1


def text(epoch: float, epochs: int) -> str:
    return f"{epoch} of {epochs}"


def listed(epoch: float, _epochs: int) -> float:
    """A rate for each of three epochs."""
    return (1.0, 0.5, 0.1)[int(epoch)]


def of_numpy(epoch: float, epochs: int) -> Any:
    return np.float32(1 - epoch / epochs)
