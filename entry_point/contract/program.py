"""What every program does with its errors: a line on stderr, an exit code, a reason to keep."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence

from entry_point.contract import exit_codes
from entry_point.contract.failure import failure_text
from entry_point.contract.printable import printable
from entry_point.contract.user_error import UserError
from entry_point.contract.whole_file import NO_SPACE

_NO_ROOM = (*NO_SPACE, errno.EFBIG)


def run_program(
    name: str,
    program: Callable[[], int],
    leave_reason: Callable[[str], bool] = lambda _reason: True,
) -> int:
    """Run `program`; returns its exit code, or the one that fits the error that ended it.

    A `UserError`, or an `OSError` that names its file, becomes one line on stderr: "NAME: REASON".
    Any other error keeps its traceback.

    `leave_reason` keeps the reason where the platform looks for it. It returns False if another
    process of the job has reported one already; the line is not printed then.
    """
    try:
        return program()
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except Exception as error:
        code, reason = _explain(error)
        first = leave_reason(reason or failure_text(error))
        if reason is None:
            raise
        if first:
            sys.stderr.write(f"{name}: {reason}\n")
        return code


def asks_for_help(arguments: Sequence[str], usage: str | None) -> bool:
    """Whether `--help` is among the arguments; prints the usage, a program's docstring, if so."""
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


def _explain(error: Exception) -> tuple[int, str | None]:
    """The exit code, and one line unless only the traceback explains the error."""
    if isinstance(error, UserError):
        return exit_codes.USAGE, str(error)
    if not isinstance(error, OSError) or error.filename is None:
        return exit_codes.FAILED, None
    advice = ": free up space and run the same command again" if error.errno in _NO_ROOM else ""
    return exit_codes.FAILED, printable(f"{error.filename}: {error.strerror}{advice}")
