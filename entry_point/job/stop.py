"""Requests to stop, and the ranks' agreement on the step after which they stop.

A request is a signal to this process: SIGTERM from the platform or from the starter of the ranks,
SIGINT from Ctrl-C. A disk that fails while a single rank trains, or in evaluation, is also one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist

from entry_point.job.program import ReadError, stop_signals


class Stopped(Exception):
    """The job was asked to stop; the work in progress is abandoned."""


class StopRequest:
    """Whether this job has been asked to stop; signals count after `handle_signals`."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """`group` has the ranks that stop together, on the CPU; None for a single process."""
        self._group = group
        self._heeds, self._signalled = False, False
        self._vote: torch.Tensor | None = None
        self._pending: dist.Work | None = None
        self.failed_read: ReadError | None = None
        """The error in `reading`, if this rank's disk failed."""

    def handle_signals(self) -> None:
        """From now on, signals are requests to stop; before, they end the process."""
        if not self._heeds:
            self._heeds = True
            for number in stop_signals():
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._signalled and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C ends the process at once
        self._signalled = True

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Stop all ranks, with a checkpoint, if the block raises ReadError.

        Use it only where no other rank waits for this one before they agree. Raises Stopped.
        """
        try:
            yield
        except ReadError as error:
            self.failed_read = error
            raise Stopped from error

    @property
    def requested(self) -> bool:
        """Whether this process has been asked to stop; other ranks may not know it yet."""
        return self._signalled or self.failed_read is not None

    def agreed(self, checkpoint: bool) -> tuple[bool, bool]:
        """Returns whether all ranks stop now, and whether any of them passed `checkpoint=True`.

        All ranks get the same answers in the same call. A call returns the result of the previous
        call's votes, which were exchanged during the step in between, so no rank waits.
        """
        if self._group is None:
            return self.requested, checkpoint
        stop, wanted = False, False
        if self._pending is not None and self._vote is not None:
            self._pending.wait()
            stop, wanted = (bool(vote) for vote in self._vote.tolist())
        self._vote = torch.tensor([int(self.requested), int(checkpoint)], dtype=torch.int32)
        self._pending = dist.all_reduce(
            self._vote, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )
        return stop, wanted

    def agree_now(self) -> bool:
        """Returns whether any rank has been asked to stop; waits for the slowest rank."""
        if self._group is None:
            return self.requested
        vote = torch.tensor([int(self.requested)], dtype=torch.int32)
        dist.all_reduce(vote, op=dist.ReduceOp.MAX, group=self._group)
        return bool(vote.item())
