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


class Moment:
    """Now, by the clock of `device`: on a GPU, when the current stream gets here.

    On a CPU it reads the clock. On a GPU it records an event, which costs no synchronization; only
    `seconds_since` waits, without keeping a core busy.
    """

    def __init__(self, device: torch.device) -> None:
        self._time, self._event = 0.0, None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True, blocking=True)
            self._event.record()
        else:
            self._time = time.perf_counter()

    def seconds_since(self, earlier: Moment) -> float:
        """The seconds from a moment of the same stream to this one."""
        if self._event is None or earlier._event is None:
            return self._time - earlier._time
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1000


class Stopwatch:
    """`with Stopwatch(device) as watch: ...` measures the seconds of a block on its device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> Stopwatch:
        self._began = Moment(self._device)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._ended = Moment(self._device)

    @property
    def seconds(self) -> float:
        return self._ended.seconds_since(self._began)
