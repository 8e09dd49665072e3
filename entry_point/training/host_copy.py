"""The host runs ahead of a GPU, but not far; results come back while the GPU computes."""

from __future__ import annotations

from collections import deque

import torch

_MOST_STEPS_AHEAD = 2


class RunAhead:
    """Keeps the host at most two steps ahead of a GPU: each step ahead holds a batch on the GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: deque[torch.cuda.Event] = deque()

    def wait(self) -> None:
        """All work of a step has been launched; wait for the step before the previous one."""
        if self._device.type == "cuda":
            self._steps.append(_event())
            if len(self._steps) > _MOST_STEPS_AHEAD:
                self._steps.popleft().synchronize()


class HostCopy:
    """A tensor on its way to the CPU. On a CPU, the tensor itself."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._copy = tensor.detach()
        if tensor.device.type == "cuda":
            self._copy = torch.empty_like(self._copy, device="cpu", pin_memory=True)
            self._copy.copy_(tensor.detach(), non_blocking=True)
            self._arrived = _event()

    def wait(self) -> torch.Tensor:
        """The tensor on the CPU, once the device has computed it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy


def _event() -> torch.cuda.Event:
    """Now, on the current stream. By default, waiting for an event keeps a core busy."""
    event = torch.cuda.Event(blocking=True)
    event.record()
    return event
