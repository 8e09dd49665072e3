"""Starts Python programs in milliseconds: forks them from a server that has imported torch.

They are real processes, with real signals, memory and deaths, but without seconds of imports.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.preloaded"])
ROOT = Path(__file__).resolve().parents[1]
OURS = ("custom_op", "entry_point", "launch", "project")


class Program:
    """A started program, as `subprocess.Popen` has it."""

    def __init__(self, process: ForkServerProcess, log: Path, errors: Path | None) -> None:
        assert process.pid is not None
        self.pid, self.log, self.errors, self._process = process.pid, log, errors, process

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has written to stdout and to stderr, once it has ended."""
        self.wait(timeout)
        return _text(self.log), "" if self.errors is None else _text(self.errors)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[str],
    log: Path,
    *,
    errors: Path | None = None,
    environment: Mapping[str, str] | None = None,
    tree: Path | None = None,
    prepare: Callable[[], object] | None = None,
) -> Program:
    """Start `python ARGUMENTS`, where those begin with `-m MODULE` or `-c CODE`.

    Its output goes to the file `log`; stderr to `errors`, if there is one. `tree` is the working
    directory, if its packages replace this repository's. `prepare` runs before the program.
    """
    _open(log), errors and _open(errors)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    process = SERVER.Process(
        target=become, args=(list(arguments), log, errors, environment, tree, prepare)
    )
    process.start()
    return Program(process, log, errors)


def become(
    arguments: Sequence[str],
    log: Path,
    errors: Path | None,
    environment: Mapping[str, str],
    tree: Path | None,
    prepare: Callable[[], object] | None,
) -> None:
    """Run a program, as `start` does, in this forked process and end with its exit code."""
    os.setsid()
    os.dup2(_open(log), 1)
    os.dup2(_open(errors or log), 2)
    # By default, a fork server's process would start its workers in that server too.
    multiprocessing.set_start_method("fork", force=True)
    take(environment)
    if tree is not None:
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        forget()
    if prepare is not None:
        prepare()
    import torch

    torch.set_num_threads(1)
    run(arguments)


def take(environment: Mapping[str, str]) -> None:
    """Have this process run in another environment, as if it had started there."""
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    tempfile.tempdir = None  # TMPDIR may be another one now


def forget() -> None:
    """Have this process import our packages anew, as an interpreter does."""
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]


def run(arguments: Sequence[str]) -> None:
    """Run `python ARGUMENTS` in this process, which an error ends."""
    kind, program, *rest = arguments
    sys.argv = [kind, *rest]
    try:
        if kind == "-m":
            sys.modules.pop(program, None)  # runpy warns of a module that was imported
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    except Exception:
        sys.excepthook(*sys.exc_info())
        raise SystemExit(1) from None


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="backslashreplace")
