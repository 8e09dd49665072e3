"""Stops the job when a loss is NaN or infinite, and names the step and its samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


class NonFiniteLossError(RuntimeError):
    """The loss of one step is NaN or infinite."""


@dataclass
class _Entry:
    loss: torch.Tensor
    ready: torch.cuda.Event | None
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
        if loss.device.type == "cuda":
            copy = torch.empty((), dtype=loss.dtype, pin_memory=True)
            copy.copy_(loss.detach(), non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
            self._waiting.append(_Entry(copy, ready, epoch, step, indices))
            self._check(lag=2)
        else:
            self._waiting.append(_Entry(loss.detach(), None, epoch, step, indices))
            self._check(lag=0)

    def flush(self) -> None:
        """Check all losses taken so far."""
        self._check(lag=0)

    def _check(self, lag: int) -> None:
        while len(self._waiting) > lag:
            entry = self._waiting.popleft()
            if entry.ready is not None:
                entry.ready.synchronize()
            if not torch.isfinite(entry.loss):
                samples = ", ".join(self._key(index) for index in entry.indices.tolist())
                raise NonFiniteLossError(
                    f"loss={float(entry.loss)} in step {entry.step} of epoch {entry.epoch}, on the "
                    f"samples {samples}; the checkpoints in {self._checkpoints} are from before; "
                    "lower optim.lr, or inspect these images"
                )
