"""Requests to stop, and how all ranks agree on the step after which they stop.

A request is a signal to this process (SIGTERM from the platform, SIGINT from Ctrl-C), or a file
that the supervisor creates when the signal reaches it instead. A rank whose disk fails asks all to
stop, too: without its gradients, the others would wait, and the last steps would be lost.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from types import FrameType
from typing import TypeVar

import torch
import torch.distributed as dist

from entry_point.job.program import ReadError, stop_signals
from entry_point.job.ranks import Supervisor

_LONG_WAIT_S, _POLL_S = 5.0, 1.0
_STEPS_TO_AGREE = 2
"""The votes of one step take effect after the next."""
Item = TypeVar("Item")


class Stopped(BaseException):
    """The job was asked to stop; the work in progress is abandoned.

    No Exception, since a signal handler raises it in code that handles those.
    """


class StopRequest:
    """Whether this job has been asked to stop. Catches signals from construction on."""

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        arrive: Callable[[], None] = lambda: None,
        supervisor: Supervisor | None = None,
    ) -> None:
        """`arrive` is called before a vote that waits for the slowest rank."""
        self._signalled = False
        self._begun = False
        self._group, self._arrive = group, arrive
        self._supervisor = supervisor or Supervisor()
        self._vote: torch.Tensor | None = None
        self._pending: dist.Work | None = None
        self.failed_read: ReadError | None = None
        """What `interrupting` met, if this rank's disk failed."""
        self.gave_up_waiting = False
        """Whether `interrupting` raised: a thread may hang in a read and never end."""
        for number in stop_signals():
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGALRM, self._on_alarm)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._signalled and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C stops at once
        self._signalled = True

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested and not self.gave_up_waiting:
            self.gave_up_waiting = True
            raise Stopped

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise Stopped in a block that waits for long when the job is asked to stop, or if what it
        waits for cannot be read.

        Only for waits that abandon nothing but what they wait for.
        """
        signal.setitimer(signal.ITIMER_REAL, _LONG_WAIT_S, _POLL_S)
        try:
            yield
        except ReadError as error:
            self.failed_read = error
            raise Stopped from error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def with_reserve(self, batches: Iterator[Item]) -> Iterator[Item]:
        """Yields one epoch's batches for one of several ranks; the epoch begins once all have two
        of them.

        If the job is asked to stop while this rank waits for long, the two that it holds are enough
        for the steps until all ranks know: without them, the others would wait for its gradients.

        Raises:
            Stopped: on every rank, if any rank was asked to stop before the epoch began.
        """
        held: deque[Item] = deque()
        with suppress(Stopped):  # raised again once all ranks know
            with self.interrupting():
                held.extend(islice(batches, _STEPS_TO_AGREE))
        if self.agree_now():
            raise Stopped
        try:
            while held:
                with self.interrupting():
                    held.extend(islice(batches, 1))
                yield held.popleft()
        except Stopped:
            yield from held

    @property
    def requested(self) -> bool:
        """Whether this process knows of a request; other ranks may not know yet."""
        return self._signalled or self.failed_read is not None or self._supervisor.wants_stop()

    def agreed(self, checkpoint: bool) -> tuple[bool, bool]:
        """Returns whether all ranks stop now, and whether any of them passed `checkpoint=True`.

        Every rank gets the same answers in the same call. A call returns the votes of the call
        before, which were exchanged during the step in between, so no rank waits.
        """
        if not self._begun:
            self._supervisor.report_begun()
            self._begun = True
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
        """Returns whether any rank has been asked to stop by now; waits for the slowest rank."""
        if self._group is None:
            return self.requested
        self._arrive()
        vote = torch.tensor([int(self.requested)], dtype=torch.int32)
        dist.all_reduce(vote, op=dist.ReduceOp.MAX, group=self._group)
        return bool(vote.item())
