"""A strike: one signal to one random process of a job, at a random moment."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.chaos import victims

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
Moments = Mapping[str, Callable[[], bool]]
"""Name -> whether it has come in this attempt."""


@dataclass(frozen=True)
class Hit:
    """A strike that found its victim."""

    role: str
    number: signal.Signals
    pid: int


@dataclass
class Strike:
    """Drawn before the attempt; the victim is drawn from those that live at its moment."""

    moment: str
    delay: float
    number: signal.Signals
    pick: float
    hit: Hit | None = None

    @classmethod
    def drawn(cls, draw: random.Random, moments: Moments, longest_delay: float) -> Strike:
        moment = draw.choice(sorted(moments))
        delay = longest_delay * draw.random() ** 2
        return cls(moment, delay, draw.choice(SIGNALS), draw.random())

    def wait_and_hit(self, mark: dict[str, str], job: int, moments: Moments) -> None:
        """Return once the signal is sent, or the process `job` has ended before."""
        alive = victims.find
        while job in (found := alive(mark)) and not moments[self.moment]():
            time.sleep(0.002)
        if job in found:
            time.sleep(self.delay)
        while (found := alive(mark)) and job in found:
            roles = sorted(set(found.values()))
            role = roles[int(self.pick * len(roles))]
            pids = sorted(pid for pid in found if found[pid] == role)
            pid = pids[int(self.pick * 997) % len(pids)]
            # A program installs its handlers a moment after its start; before, nothing is ours.
            ours = pid == job or self.number == signal.SIGINT
            asks = self.number != signal.SIGKILL and role != "compiler"
            if ours and asks and not victims.handles(pid, signal.SIGTERM):
                time.sleep(0.005)
            elif victims.kill(pid, self.number):
                self.hit = Hit(role, self.number, pid)
                return

    def __str__(self) -> str:
        hit = f"{self.hit.number.name} to {self.hit.role}" if self.hit else "hit nothing"
        return f"{self.delay:.3f} s after {self.moment}: {hit}"
