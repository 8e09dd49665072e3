"""The signals that ask a program to stop."""

from __future__ import annotations

import os
import signal
from types import FrameType


def stop_signals() -> list[signal.Signals]:
    """SIGTERM from the platform, SIGINT from Ctrl-C, SIGHUP from a terminal that is closed.

    nohup starts a program with SIGHUP ignored, which must stay so.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


def exit_on_stop(code: int) -> None:
    """Exit with `code` at once when asked to stop, from now on.

    Without clean-up: an exception from a signal handler can be lost in an import that is under way.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        os._exit(code)

    for number in stop_signals():
        signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals())


def defer_stop() -> None:
    """Have requests to stop wait until the program that replaces this one is ready for them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
