"""Runs programs in forked processes."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from entry_point import __main__ as entry_point
from tests.forkserver import SERVER

LONGEST_S = 120.0


def _run(command: str, arguments: Sequence[str], log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    raise SystemExit(entry_point.run(command, list(arguments)))


def run(command: str, arguments: Sequence[str], log: Path) -> tuple[int, str]:
    """The exit code and the output of a program that must end soon, and not by a signal."""
    process = SERVER.Process(target=_run, args=(command, list(arguments), str(log)))
    process.start()
    process.join(LONGEST_S)
    if process.exitcode is None:
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    text = log.read_text(errors="backslashreplace")
    code = process.exitcode
    assert code is not None and code >= 0, f"{command} {arguments} ended with {code}\n{text}"
    return code, text
