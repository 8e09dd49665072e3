"""Times a block of code on its device, and names it for the profiler."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch._C._autograd import _profiler_enabled
from torch.profiler import record_function

_NOTHING = nullcontext()


def named_range(name: str) -> AbstractContextManager[Any]:
    """`record_function(name)`, without its microseconds where no profiler runs."""
    return record_function(name) if _profiler_enabled() else _NOTHING


def finish(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """`with Stopwatch(device) as watch: ...` measures the seconds of a block.

    On a CPU it reads the clock. On a GPU it records events on the current stream, which costs no
    synchronization; only reading `seconds` waits for the stream.
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
