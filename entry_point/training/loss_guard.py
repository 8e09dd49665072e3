"""A loss that is NaN or infinite stops the job, and says which step and which samples."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch


class NonFiniteLossError(RuntimeError):
    """The loss of one step is NaN or infinite."""

    def __init__(self, loss: float, epoch: int, step: int, indices: torch.Tensor) -> None:
        super().__init__(f"loss={loss} in step {step} of epoch {epoch}")
        self.indices = indices


@dataclass
class _Entry:
    loss: torch.Tensor
    ready: torch.cuda.Event | None
    epoch: int
    step: int
    indices: torch.Tensor


class LossGuard:
    """Looks at each step's loss: at once on a CPU, two steps later on a GPU.

    The loss travels from the GPU while later steps run, so that looking costs no
    synchronisation; `flush` waits for all of them.
    """

    def __init__(self, lag: int = 2) -> None:
        self._lag = lag
        self._waiting: deque[_Entry] = deque()

    def watch(self, loss: torch.Tensor, epoch: int, step: int, indices: torch.Tensor) -> None:
        """Take one step's loss. Raises NonFiniteLossError for this or an earlier step."""
        if loss.device.type == "cuda":
            copy = torch.empty((), dtype=loss.dtype, pin_memory=True)
            copy.copy_(loss.detach(), non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
            self._waiting.append(_Entry(copy, ready, epoch, step, indices))
            self._check(self._lag)
        else:
            self._waiting.append(_Entry(loss.detach(), None, epoch, step, indices))
            self._check(0)

    def flush(self) -> None:
        """Look at all losses taken so far."""
        self._check(0)

    def _check(self, lag: int) -> None:
        while len(self._waiting) > lag:
            entry = self._waiting.popleft()
            if entry.ready is not None:
                entry.ready.synchronize()
            if not torch.isfinite(entry.loss):
                raise NonFiniteLossError(float(entry.loss), entry.epoch, entry.step, entry.indices)
