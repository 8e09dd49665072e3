"""Stops the job when a loss is NaN or infinite, and names the step and its samples."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from entry_point.training.host_copy import HostCopy


class NonFiniteLossError(RuntimeError):
    """The loss of one step is NaN or infinite."""


@dataclass
class _Entry:
    loss: HostCopy
    epoch: int
    step: int
    indices: torch.Tensor


class LossGuard:
    """Checks each step's loss: at once on a CPU, two steps later on a GPU.

    A GPU's loss is copied while later steps run, so checking needs no synchronization. `key` names
    a sample by its number; `checkpoints` is the folder that the error points to.
    """

    def __init__(self, key: Callable[[int], str], checkpoints: Path) -> None:
        self._key, self._checkpoints = key, checkpoints
        self._waiting: deque[_Entry] = deque()

    def watch(self, loss: torch.Tensor, epoch: int, step: int, indices: torch.Tensor) -> None:
        """Take one step's loss. Raises NonFiniteLossError for this or an earlier step."""
        self._waiting.append(_Entry(HostCopy(loss), epoch, step, indices))
        self._check(lag=2 if loss.device.type == "cuda" else 0)

    def flush(self) -> None:
        """Check all losses taken so far."""
        self._check(lag=0)

    def _check(self, lag: int) -> None:
        while len(self._waiting) > lag:
            entry = self._waiting.popleft()
            loss = float(entry.loss.wait())
            if not math.isfinite(loss):
                samples = ", ".join(self._key(index) for index in entry.indices.tolist())
                raise NonFiniteLossError(
                    f"loss={loss} in step {entry.step} of epoch {entry.epoch}, on the "
                    f"samples {samples}; the checkpoints in {self._checkpoints} are from before; "
                    "lower optim.lr, or inspect these images"
                )
