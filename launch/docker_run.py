"""The containers of one job: started together, their logs merged, stopped and removed together."""

import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType

from launch.engine import ContainerError, Engine

# Time for the other hosts to notice by themselves that one has failed.
PEER_GRACE_SECONDS = 30.0


def say(text: str) -> None:
    """One line of the launcher's own."""
    sys.stdout.write(f"docker-train: {text}\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Ending:
    """How one host's container ended."""

    host: str
    code: int
    out_of_memory: bool


class Containers:
    """A context manager: whatever happens inside, no container and no network is left behind.

    A small shell process does the clean-up. It waits until this process closes a pipe, which the
    system does for a process that dies, so that even SIGKILL leaves nothing running.
    """

    def __init__(self, engine: Engine, job: str, stop_seconds: int) -> None:
        self._engine, self._job, self._stop_seconds = engine, job, stop_seconds
        self._names: dict[str, str] = {}
        self._endings: SimpleQueue[Ending] = SimpleQueue()
        self._print = threading.Lock()
        self._stops = 0

    def __enter__(self) -> "Containers":
        self._handlers = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        label = f"label=job={self._job}"
        engine, seconds = shlex.join(self._engine.command), self._stop_seconds
        script = f"""
            cat
            list() {{ {engine} ps --all --quiet --filter {label}; }}
            list | xargs -r {engine} stop -t {seconds}
            list | xargs -r {engine} rm --force --volumes
            {engine} network ls --quiet --filter {label} | xargs -r {engine} network rm
        """
        # In a session of its own: Ctrl-C must not reach it.
        self._cleaner = subprocess.Popen(
            ["sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._cleaner.stdin is not None
        self._cleaner.stdin.close()
        while self._cleaner.poll() is None:
            try:
                self._cleaner.wait()
            except KeyboardInterrupt:
                say("removing the containers; a moment")
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def create_network(self, isolated: bool) -> str:
        """A network of the job's own; an isolated one leads nowhere else. Returns its name."""
        name = f"{self._job}-network"
        options = ["--internal"] if isolated else []
        self._engine.call("network", "create", *options, f"--label=job={self._job}", name)
        return name

    def create(self, host: str, *arguments: str) -> None:
        """Create one host's container, not yet running; raises ContainerError."""
        name = f"{self._job}-{host}"
        self._engine.call(
            "create",
            f"--name={name}",
            f"--label=job={self._job}",
            f"--stop-timeout={self._stop_seconds}",
            *arguments,
        )
        self._names[host] = name

    def run(self) -> int:
        """Start all, merge their logs until all have ended; the first failure's code, else 0."""
        if self._stops:
            raise ContainerError("stopped before the job started")
        for host in self._names:
            threading.Thread(target=self._follow, args=(host,), daemon=True).start()
        ended: list[Ending] = []
        while len(ended) < len(self._names):
            failed = any(ending.code for ending in ended)
            ended += self._next_ending(PEER_GRACE_SECONDS if failed and not self._stops else None)
        for ending in ended:
            if ending.out_of_memory:
                say(
                    f"{ending.host} was killed for memory: give the engine more, or a smaller batch"
                )
        return next((ending.code for ending in ended if ending.code), 0)

    def _next_ending(self, patience: float | None) -> Sequence[Ending]:
        """The next host to end; after ``patience`` seconds in vain, all are asked to stop."""
        try:
            ending = self._endings.get(timeout=patience)
        except Empty:
            self._stop("a host has failed; stopping the others")
            return []
        if ending.code and len(self._names) > 1:
            say(f"{ending.host} ended with code {ending.code}")
        return [ending]

    def _follow(self, host: str) -> None:
        """Start one container and print its lines until it has ended."""
        prefix = f"{host} | " if len(self._names) > 1 else ""
        process = subprocess.Popen(
            [*self._engine.command, "start", "--attach", self._names[host]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            with self._print:
                sys.stdout.write(f"{prefix}{line.rstrip()}\n")
                sys.stdout.flush()
        self._endings.put(self._ending(host, process.wait()))

    def _ending(self, host: str, fallback: int) -> Ending:
        """What the engine says of an ended container; the attached command's code failing that."""
        form = "{{.State.ExitCode}} {{.State.OOMKilled}}"
        try:
            code, memory = self._engine.call("inspect", "-f", form, self._names[host]).split()
        except (ContainerError, ValueError):
            return Ending(host, fallback or 1, False)
        # A container that could not be started has no exit code of its own.
        return Ending(host, int(code) or fallback, memory == "true")

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop(f"stopping as SageMaker does: SIGTERM, then {self._stop_seconds} s to finish")

    def _stop(self, reason: str) -> None:
        """Ask all to stop; asked again, end them at once."""
        self._stops += 1
        names = list(self._names.values())
        ask = ["stop", "-t", str(self._stop_seconds)] if self._stops == 1 else ["kill"]
        say(reason if self._stops == 1 else "ending it at once")
        if names:
            subprocess.Popen(
                [*self._engine.command, *ask, *names],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
