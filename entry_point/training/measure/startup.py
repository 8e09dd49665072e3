"""How long the job takes until its first step, by part: time that a device is paid for idle."""

from __future__ import annotations

import logging
import os
import time

from entry_point.contract.run_folder import STARTED

logger = logging.getLogger(__name__)


class Startup:
    """Marks the end of each part of the start-up; the first, the imports, ends on construction."""

    def __init__(self) -> None:
        # The container's first process sets STARTED; a trainer without one starts here.
        self._began = float(os.environ.get(STARTED, time.time()))
        self._last = self._began
        self._finished = False
        self._parts: dict[str, float] = {}
        self.mark("imports")

    @property
    def elapsed(self) -> float:
        """Seconds since the job began."""
        return time.time() - self._began

    def mark(self, part: str) -> None:
        """End `part` now; ignored once the start-up is finished."""
        if self._finished:
            return
        now = time.time()
        self._parts[part] = now - self._last
        self._last = now

    def finish(self, part: str) -> None:
        """End the last part and log `startup: imports=1.2s ... total=6.0s`, once."""
        if self._finished:
            return
        self.mark(part)
        self._finished = True
        parts = {**self._parts, "total": self._last - self._began}
        times = " ".join(f"{name}={seconds:.1f}s" for name, seconds in parts.items())
        logger.info("startup: %s", times)
