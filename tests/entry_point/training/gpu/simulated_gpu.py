"""A GPU at torch's border: the clocks of a host that launches kernels and of the GPU that runs
them."""

from __future__ import annotations

import time

import pytest
import torch


class SimulatedGpu:
    """Times in seconds. `install` replaces torch.cuda.Event and the host's clock."""

    def __init__(self) -> None:
        self.host = self.stream = 0.0

    def launch(self, seconds: float) -> None:
        """A kernel: launched in a millisecond, run after those launched before."""
        self.host += 0.001
        self.stream = max(self.host, self.stream) + seconds

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "Event", self._event)
        monkeypatch.setattr(time, "perf_counter", lambda: self.host)

    def _event(self, *, enable_timing: bool = False, blocking: bool = False) -> SimulatedEvent:
        assert blocking  # else synchronize() keeps a core busy
        return SimulatedEvent(self, enable_timing)


class SimulatedEvent:
    """A torch.cuda.Event of a SimulatedGpu."""

    def __init__(self, gpu: SimulatedGpu, timed: bool) -> None:
        self._gpu, self._timed, self._time = gpu, timed, 0.0

    def record(self) -> None:
        self._time = max(self._gpu.host, self._gpu.stream)

    def synchronize(self) -> None:
        self._gpu.host = max(self._gpu.host, self._time)

    def elapsed_time(self, later: SimulatedEvent) -> float:
        """Milliseconds."""
        assert self._timed and later._timed
        return 1000 * (later._time - self._time)
