"""The ranks as processes of this one: started, asked to stop, killed if they do not."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from entry_point.contract.stop_signals import stop_signals
from entry_point.supervisor import hand_over
from entry_point.supervisor.die_with_parent import die_with_parent

# The platform kills 120 s after its stop request; the ranks get most of that.
STOP_PATIENCE_S = 110.0
# `timeout make` and a terminal send one request to make and to this process, and make passes it on.
ONE_REQUEST_S = 1.0


class RankProcesses:
    """The ranks' process tree; signals to this process become stop requests to the ranks.

    So does the end of whoever reads stdout: `| head`, a terminal that was closed.
    """

    def __init__(
        self, command: list[str], environment: dict[str, str], folder: Path, lock: BinaryIO
    ) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping_since: float | None = None
        self.killed = False
        """Whether the ranks were killed because they had not stopped."""
        for number in stop_signals():
            signal.signal(number, self._on_signal)
        self._process = subprocess.Popen(
            command,
            env=environment,
            # So that every rank holds the lock: torchrun passes no other file on to its workers.
            stdin=lock,
            # A separate session keeps a terminal's Ctrl-C from the ranks: it is passed on once.
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )

    @property
    def stopped_before_first_step(self) -> bool:
        """Whether the stop came when there was nothing to save."""
        return self._stopping_since is not None and not hand_over.has_begun(self._folder)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._stopping_since is None:
            self._request_stop()
        elif time.monotonic() - self._stopping_since < ONE_REQUEST_S:
            return
        elif number != signal.SIGHUP:  # one closed terminal sends several, by kernel and shell
            self._kill()  # a second request means now

    def _request_stop(self) -> None:
        self._stopping_since = time.monotonic()
        hand_over.request_stop(self._folder)
        if self.stopped_before_first_step:
            self._kill()

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.killed = True
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the end and return the exit code; kill ranks that do not stop in time."""
        assert self._process is not None
        while True:
            try:
                return self._process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                self._check()

    def _check(self) -> None:
        since = self._stopping_since
        if since is None:
            if _output_is_closed():
                sys.stderr.write("train: nobody reads the output any more; stopping\n")
                self._request_stop()
        elif self.stopped_before_first_step or time.monotonic() - since > STOP_PATIENCE_S:
            self._kill()


def _output_is_closed() -> bool:
    """Whether stdout is a pipe or terminal whose other end is closed."""
    poll = select.poll()
    poll.register(1, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
