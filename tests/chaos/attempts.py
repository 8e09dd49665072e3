"""Runs a command that is struck while it works, and checks that nothing of it survives."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from entry_point.job.program import ExitCode
from tests.chaos import victims
from tests.chaos.strikes import Moments, Strike

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 240.0
PATIENCE_S = 60.0
"""How long a job's processes may live on: a compiler finishes its file."""


@dataclass(frozen=True)
class Command:
    """A program and the places that it works in."""

    arguments: Sequence[str]
    folder: Path
    temporary: Path
    limit: Callable[[], object] | None = None
    """Called in the new process before the program."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, mark: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
        self.temporary.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            **self.environment,
            **mark,
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        with log.open("wb") as output:
            return subprocess.Popen(
                self.arguments,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=self.limit,
            )


@dataclass(frozen=True)
class Attempt:
    """How a command ended."""

    code: int
    log: str
    strike: Strike | None

    @property
    def struck(self) -> str | None:
        """The role of the process that was struck, if any."""
        return self.strike.hit.role if self.strike and self.strike.hit else None

    def check_code(self) -> None:
        """A process that a signal ended was struck by it; everything else has a documented code."""
        hit = self.strike and self.strike.hit
        allowed: set[int] = {ExitCode.FINISHED, ExitCode.FAILED}
        if hit and hit.role in ("launcher", "supervisor", "packing", "predict"):
            stopped: set[int] = {ExitCode.STOPPED, ExitCode.TERMINATED, ExitCode.INTERRUPTED}
            allowed |= {-hit.number} if hit.number == signal.SIGKILL else stopped
            if hit.role in ("packing", "predict"):
                allowed |= {-hit.number}  # they leave SIGHUP and SIGTERM to the kernel
        elif hit and hit.number != signal.SIGKILL:
            allowed |= {ExitCode.STOPPED}  # a rank passes a request on to the others
        assert self.code in allowed, f"exit code {self.code}\n{self.log}"
        if self.code == ExitCode.STOPPED:
            assert "Traceback" not in self.log, self.log


def attempt(
    command: Command, log: Path, strike: Strike | None = None, moments: Moments | None = None
) -> Attempt:
    """Run the command to its end, struck once if there is a strike."""
    mark = victims.mark()
    process = command.start(mark, log)
    try:
        if strike is not None:
            strike.wait_and_hit(mark, process.pid, moments or {})
        code = process.wait(timeout=LONGEST_S)
        print(f"  {strike or 'undisturbed'}: exit code {code}", flush=True)  # noqa: T201
        text = log.read_text(errors="backslashreplace")
        assert not (left := survivors(mark)), f"still running: {left}\n{text}"
    finally:
        for pid in victims.find(mark):
            victims.kill(pid, signal.SIGKILL)
        process.wait()
    return Attempt(code, text, strike)


def survivors(mark: dict[str, str]) -> dict[int, str]:
    """The processes of a job that live on after a while, each with its role."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := victims.find(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found
