"""How long the job took to its first step, by part: the time one pays for a device in vain."""

from __future__ import annotations

import logging
import os
import time

from entry_point.supervisor.hand_over import STARTED

logger = logging.getLogger(__name__)


class Startup:
    """Marks the ends of the parts that come one after another, from the job's start on."""

    def __init__(self) -> None:
        # The container's first process says when it began; a trainer by itself begins here.
        self._began = float(os.environ.get(STARTED, time.time()))
        self._last = self._began
        self._finished = False
        self._parts: dict[str, float] = {}

    @property
    def elapsed(self) -> float:
        """Seconds since the job began."""
        return time.time() - self._began

    def mark(self, part: str) -> None:
        """`part` ends now; nothing more is marked once the start is finished."""
        if self._finished:
            return
        now = time.time()
        self._parts[part] = now - self._last
        self._last = now

    def finish(self, part: str) -> None:
        """`part` ends the start: log `startup: imports=1.2s ... total=6.0s`, once."""
        if self._finished:
            return
        self.mark(part)
        self._finished = True
        parts = {**self._parts, "total": self._last - self._began}
        times = " ".join(f"{name}={seconds:.1f}s" for name, seconds in parts.items())
        logger.info("startup: %s", times)
