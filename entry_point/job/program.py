"""The end of every program: exit codes, errors, the reason of a failure, and requests to stop."""

from __future__ import annotations

import atexit
import errno
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import NoReturn

from entry_point.job.text import printable

BEGAN = time.time()
"""Time at which this process began, after the start of the interpreter."""
JOB_BEGAN = "TRAIN_BEGAN"
"""Environment variable: when the command that started this rank began, as `time.time()`."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk."""
LIMIT = 1024
"""Number of characters of a failure file that SageMaker shows."""


def job_began() -> float:
    """Returns the time at which the job of this process began, as `time.time()`."""
    return float(os.environ.get(JOB_BEGAN, BEGAN))


class ExitCode(IntEnum):
    """Exit codes of the programs."""

    FINISHED = 0
    """Success: all outputs are written."""
    FAILED = 1
    """Failed; a job's output/failure has the reason."""
    USAGE = 2
    """The configuration or the dataset is wrong; one line names the key or file, and what is
    allowed."""
    STOPPED = 75
    """Stopped on request with a checkpoint written; the same command resumes.
    sysexits.h calls it EX_TEMPFAIL: try again later."""
    INTERRUPTED = 130
    """Ended by Ctrl-C, as a shell reports it: 128 + SIGINT."""
    NO_READER = 141
    """The reader of the output has gone, as a shell reports it: 128 + SIGPIPE."""
    TERMINATED = 143
    """Ended by SIGTERM with nothing to save, as a shell reports it: 128 + SIGTERM."""


NO_FAILURE = (ExitCode.FINISHED, ExitCode.STOPPED)


class UserError(Exception):
    """An error without traceback: what is wrong, what is allowed, what to do.

    Each argument is a problem, and becomes one printable line.
    """

    exit_code = ExitCode.USAGE

    def __str__(self) -> str:
        return "\n".join(map(printable, self.args))


class ReadError(UserError):
    """A failure of a disk or network: the file could not be read, but may be undamaged.

    Neither an OSError nor a DataError, so that it is not mistaken for damage.
    """

    exit_code = ExitCode.FAILED


def run_program(
    name: str,
    program: Callable[[], int],
    failure: Path | None = None,
    again: Callable[[], str] = lambda: "the same command",
) -> int:
    """Run `program`; returns its exit code, or that of the error that ended it.

    A `UserError`, or an `OSError` that names its file, becomes one line on stderr: "NAME: REASON".
    Any other error keeps its traceback.

    `failure` is the file in which the platform looks for the reason. If another process of the job
    has left one there, that is usually the cause of this error, and neither line nor traceback is
    printed. `again` names the command to run again once a full disk has room.
    """
    try:
        return program()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        code, reason = _explain(error, again)
        first = failure is None or leave_reason(failure, reason or failure_text(error))
        if first and reason is None:
            raise
        if first:
            sys.stderr.write(f"{name}: {reason}\n")
        return code


def _explain(error: Exception, again: Callable[[], str]) -> tuple[int, str | None]:
    """Returns the exit code, and one line, or None if only the traceback explains the error."""
    if isinstance(error, UserError):
        return error.exit_code, str(error)
    if str(error).startswith("DataLoader worker"):  # raised by torch's signal handler, anywhere
        died = " ".join(str(error).split()).rstrip(".")
        return (
            ExitCode.FAILED,
            f"{died}; if memory ran out, lower pipeline.num_workers or the batch size",
        )
    if not isinstance(error, OSError):
        return ExitCode.FAILED, None
    if f"{error.strerror}".startswith("No usable temporary directory"):  # torch needs one
        advice = "free up space, or set TMPDIR to a folder that can be written"
        return ExitCode.FAILED, printable(f"{error.strerror}: {advice}")
    if error.filename is None:
        return ExitCode.FAILED, None
    advice = f": free up space and run {again()} again" if error.errno in NO_ROOM else ""
    return ExitCode.FAILED, printable(f"{error.filename}: {error.strerror}{advice}")


def asks_for_help(arguments: Sequence[str], usage: str | None) -> bool:
    """Returns whether `--help` is among the arguments; prints the usage, a program's docstring, if
    so."""
    if not {"-h", "--help"} & {*arguments}:
        return False
    sys.stdout.write(f"{usage}".rstrip() + "\n")
    return True


def run_for_reader(program: Callable[[], int]) -> int:
    """Run a program whose output may be closed early, as by `| head`, which is no error."""
    try:
        code = program()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The rest of the buffer would raise the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.NO_READER


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


def leave_reason(path: Path, reason: str) -> bool:
    """Write to `path` why this process failed; returns False if another of the job already has.

    If it cannot be written, the reason is only in the log.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(reason[:LIMIT].encode("utf-8", "backslashreplace"))
    except FileExistsError:
        return False
    except OSError:
        with suppress(OSError):
            path.unlink(missing_ok=True)  # a full disk leaves it empty
    return True


# -- an output whose reader has gone


class _DroppingText(io.TextIOWrapper):
    """Drops text whose write fails with a `dropped` error."""

    dropped: type[OSError] = OSError

    def write(self, text: str) -> int:
        with suppress(self.dropped):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(self.dropped):
            super().flush()

    def close(self) -> None:
        """Leave the buffer open, which belongs to the replaced stream."""
        self.flush()


class _DroppingUnread(_DroppingText):
    dropped = BrokenPipeError


def drop_unread_output(*, drop_all: bool = False) -> None:
    """Replace stdout and stderr of this process by streams whose reader may go.

    With `drop_all`, the streams may also be on a full disk, which must not end a job before its
    checkpoint.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # else the program was started without it
            lines = stream.line_buffering, stream.write_through
            kind = _DroppingText if drop_all else _DroppingUnread
            setattr(sys, name, kind(stream.buffer, stream.encoding, stream.errors, None, *lines))


# -- the end of a process


EXIT_PATIENCE_S = 30.0
"""How long a process that ends waits for exit handlers: W&B's waits for its server."""


def end_process(code: int) -> NoReturn:
    """Exit as `sys.exit(code)` does, but without freeing the modules.

    torch and its imports create a million objects, which take more than a second to free.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    _kill_workers()
    handlers = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    handlers.start()
    handlers.join(EXIT_PATIENCE_S)
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except OSError:
        sys.exit(code)  # reports the error of the flush
    os._exit(code)


def end_at_once(code: int) -> NoReturn:
    """End this process and those that it has forked, without waiting for threads or processes."""
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
    """From now on, exit with `code` at once when asked to stop.

    Not with an exception: raised by a signal handler, it can be lost in an import.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        os._exit(code)

    for number in stop_signals():
        signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals())


def defer_stop() -> None:
    """Block requests to stop until the program that replaces this one is ready for them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
