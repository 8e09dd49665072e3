"""How long something took on the device that did it."""

from __future__ import annotations

import time
from types import TracebackType

import torch


def finish(device: torch.device) -> None:
    """Wait until the device has done all it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """`with Stopwatch(device) as watch: ...`: seconds of a block.

    On a CPU by the clock. On a GPU by events on the stream that is current where the block begins
    and ends: launching is not waiting, so only `seconds` waits until the stream got there.
    """

    def __init__(self, device: torch.device) -> None:
        self._events = (
            [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            if device.type == "cuda"
            else None
        )
        self._began = self._ended = 0.0

    def __enter__(self) -> Stopwatch:
        if self._events is None:
            self._began = time.perf_counter()
        else:
            self._events[0].record()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._events is None:
            self._ended = time.perf_counter()
        else:
            self._events[1].record()

    @property
    def seconds(self) -> float:
        if self._events is None:
            return self._ended - self._began
        self._events[1].synchronize()
        return self._events[0].elapsed_time(self._events[1]) / 1000
