"""How every program ends: its errors, the reason of a failure, and requests to stop."""

from __future__ import annotations

import atexit
import errno
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from entry_point.job import exit_codes
from entry_point.job.printable import printable

BEGAN = time.time()
"""When this process began, but for the start of the interpreter."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LIMIT = 1024
"""SageMaker shows that many characters of a failure file."""


class UserError(Exception):
    """What is wrong, what is allowed, what to do; it needs no traceback.

    One argument for each problem; each becomes one printable line.
    """

    exit_code = exit_codes.USAGE

    def __str__(self) -> str:
        return "\n".join(map(printable, self.args))


class ReadError(UserError):
    """A file that could not be read although it may be whole: its disk or network failed.

    No OSError and no DataError, so that nobody takes it for damage.
    """

    exit_code = exit_codes.FAILED


def run_program(
    name: str,
    program: Callable[[], int],
    leave_reason: Callable[[str], bool] = lambda _reason: True,
    again: Callable[[], str] = lambda: "the same command",
) -> int:
    """Run `program`; returns its exit code, or the one that fits the error that ended it.

    A `UserError`, or an `OSError` that names its file, becomes one line on stderr: "NAME: REASON".
    Any other error keeps its traceback.

    `leave_reason` keeps the reason where the platform looks for it. It returns False if another
    process of the job has reported one already, which this error usually follows from; neither the
    line nor the traceback is printed then. `again` names what to run again once a full disk has
    room.
    """
    try:
        return program()
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except Exception as error:
        code, reason = _explain(error, again)
        first = leave_reason(reason or failure_text(error))
        if first and reason is None:
            raise
        if first:
            sys.stderr.write(f"{name}: {reason}\n")
        return code


def _explain(error: Exception, again: Callable[[], str]) -> tuple[int, str | None]:
    """Returns the exit code, and one line unless only the traceback explains the error."""
    if isinstance(error, UserError):
        return error.exit_code, str(error)
    if str(error).startswith("DataLoader worker"):  # torch raises it wherever this process is
        died = " ".join(str(error).split()).rstrip(".")
        return exit_codes.FAILED, f"{died}; if memory ran out, lower pipeline.num_workers"
    if not isinstance(error, OSError) or error.filename is None:
        return exit_codes.FAILED, None
    advice = f": free up space and run {again()} again" if error.errno in _NO_ROOM else ""
    return exit_codes.FAILED, printable(f"{error.filename}: {error.strerror}{advice}")


def asks_for_help(arguments: Sequence[str], usage: str | None) -> bool:
    """Returns whether `--help` is among the arguments; prints the usage, a program's docstring, if
    so."""
    if not {"-h", "--help"} & {*arguments}:
        return False
    sys.stdout.write(f"{usage}".rstrip() + "\n")
    return True


def run_for_reader(program: Callable[[], int]) -> int:
    """Run a program whose reader may have enough, as with `| head`, which is no error."""
    try:
        code = program()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # What is left in the buffer would raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.NO_READER


# -- the reason of a failure


def failure_text(error: BaseException) -> str:
    """Returns the error, then as many of the traceback's last lines as fit."""
    headline = "".join(traceback.format_exception_only(error)).strip()
    headline = "\n".join(map(printable, headline.split("\n")))[: LIMIT // 2]
    trace = "".join(traceback.format_tb(error.__traceback__))
    room = LIMIT - len(headline) - 1
    if len(trace) > room:
        trace = trace[-room:].partition("\n")[2]
    return f"{headline}\n{trace}".rstrip()


def failure_file(path: Path) -> Callable[[str], bool]:
    """Remove the reason of the last attempt; returns a function that writes this one's to `path`.

    If it cannot be written, only the log has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)

    def write(reason: str) -> bool:
        try:
            path.write_bytes(reason[:LIMIT].encode("utf-8", "backslashreplace"))
        except OSError:
            with suppress(OSError):
                path.unlink(missing_ok=True)  # a full disk leaves it empty
        return True

    return write


# -- the end of a process


def end_process(code: int) -> NoReturn:
    """Exit as `sys.exit(code)` does, but leave it to the kernel to free the modules.

    torch and what it imports make a million objects; to take them apart takes more than a second.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    _kill_workers()
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except OSError:
        sys.exit(code)  # the interpreter reports it
    os._exit(code)


def end_at_once(code: int) -> NoReturn:
    """End this process and those that it has forked, without waiting for any thread or process."""
    _kill_workers()
    sys.stdout.flush()
    os._exit(code)


def _kill_workers() -> None:
    """Kill the processes that this one has forked: multiprocessing would wait for a frozen one."""
    for worker in multiprocessing.active_children():
        worker.kill()


# -- requests to stop


def stop_signals() -> list[signal.Signals]:
    """SIGTERM from the platform, SIGINT from Ctrl-C, SIGHUP from a terminal that is closed.

    nohup starts a program with SIGHUP ignored, which must stay so.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


def exit_on_stop(code: int) -> None:
    """Exit with `code` at once when asked to stop, from now on.

    Without an exception: raised by a signal handler, it can be lost in an import that is under way.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        os._exit(code)

    for number in stop_signals():
        signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals())


def defer_stop() -> None:
    """Have requests to stop wait until the program that replaces this one is ready for them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
