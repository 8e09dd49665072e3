"""The containers of one job: starts them, merges their logs, stops and removes them."""

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from types import FrameType

from launch.command_line import LaunchError
from launch.containers.engine import Engine

# How long the other hosts have to end by themselves after one has failed.
PEER_GRACE_SECONDS = 30.0
# Marks the containers and networks of this project.
LABEL = "managed-training-template.job"


def show(line: str) -> None:
    """Print a line. If the output pipe is closed, stop the job, as Ctrl-C does."""
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Discard further output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGPIPE)


def say(text: str, program: str = "docker-train") -> None:
    """Print one line of the launcher."""
    show(f"{program}: {text}")


class Containers:
    """A context manager that always removes the job's containers and network.

    A shell process does the cleanup when a pipe from this process closes. The system closes it even
    if this process is killed. Commands that create something also hold the pipe open, so the
    cleanup begins after they end.
    """

    def __init__(
        self, engine: Engine, job: str, stop_seconds: int, program: str = "docker-train"
    ) -> None:
        self._engine, self._job, self._stop_seconds = engine, job, stop_seconds
        self._program = program
        self._names: dict[str, str] = {}
        # Host and exit code of each container that has ended.
        self._ended: SimpleQueue[tuple[str, int]] = SimpleQueue()
        self._print = threading.Lock()
        self._interrupts = 0
        self._is_started = False
        self._is_stopping = False

    def __enter__(self) -> "Containers":
        self._handlers = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
        }
        label = f"label={LABEL}={self._job}"
        engine, seconds = shlex.join(self._engine.command), self._stop_seconds
        script = f"""
            cat
            list() {{ {engine} ps --all --quiet --filter {label}; }}
            list | xargs -r {engine} stop -t {seconds}
            list | xargs -r {engine} rm --force --volumes
            {engine} network ls --quiet --filter {label} | xargs -r {engine} network rm
        """
        # A new session, so that Ctrl-C does not reach it.
        self._cleaner = subprocess.Popen(
            ["sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._cleaner.stdin is not None
        self._cleaner.stdin.close()
        self._cleaner.wait()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def create_network(self, isolated: bool) -> str:
        """Create the job's network, without access to others if isolated; returns its name."""
        name = f"{self._job}-network"
        options = ["--internal"] if isolated else []
        self._make("network", "create", *options, f"--label={LABEL}={self._job}", name)
        return name

    def create(self, host: str, *arguments: str) -> None:
        """Create the container of one host without starting it; raises LaunchError."""
        name = f"{self._job}-{host}"
        self._make(
            "create",
            f"--name={name}",
            f"--label={LABEL}={self._job}",
            f"--stop-timeout={self._stop_seconds}",
            # The engine's default log driver may not allow reading the logs back.
            "--log-driver=json-file",
            *arguments,
        )
        self._names[host] = name

    def _make(self, *arguments: str) -> None:
        """Run an engine command that the cleanup must wait for; raises LaunchError."""
        if self._is_stopping:
            raise LaunchError("stopped before the job started")
        assert self._cleaner.stdin is not None
        self._engine.call(*arguments, holding=[self._cleaner.stdin.fileno()])

    def run(self) -> int:
        """Start all containers and merge their logs; returns the first failure's code, or 0."""
        for name in self._names.values():
            self._make("start", name)
        self._is_started = True
        if self._is_stopping:
            self._stop("stopping the containers that have just started")
        for host in self._names:
            threading.Thread(target=self._follow, args=(host,), daemon=True).start()
        codes: list[int] = []
        while len(codes) < len(self._names):
            limited = any(codes) and not self._is_stopping
            codes += self._next_code(PEER_GRACE_SECONDS if limited else None)
        return next((code for code in codes if code), 0)

    def _next_code(self, patience: float | None) -> Sequence[int]:
        """The code of the next host to end; after ``patience`` seconds, stop all instead."""
        try:
            host, code = self._ended.get(timeout=patience)
        except Empty:
            self._stop("a host has failed; stopping the others")
            return []
        if code and len(self._names) > 1:
            self._say(f"{host} ended with exit code {code}")
        return [code]

    def _follow(self, host: str) -> None:
        """Print the lines of one container until it ends, then report its exit code."""
        prefix = f"{host} | " if len(self._names) > 1 else ""
        process = subprocess.Popen(
            [*self._engine.command, "logs", "--follow", self._names[host]],
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
                show(f"{prefix}{line.rstrip()}")
        process.wait()
        self._ended.put((host, self._exit_code(host, self._names[host])))

    def _exit_code(self, host: str, name: str) -> int:
        """Wait until a container ends; if the engine does not answer, the host has failed."""
        try:
            code = int(self._engine.call("wait", name))
            if self._engine.call("inspect", "-f", "{{.State.OOMKilled}}", name) == "true":
                more = "give the engine more memory, or reduce the batch size"
                self._say(f"{host} ran out of memory: {more}")
            return code
        except (LaunchError, ValueError) as error:
            self._say(f"lost contact with {host}: {error}")
            return 1

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Stop the job; on a second Ctrl-C or SIGTERM, kill it."""
        self._interrupts += number != signal.SIGPIPE
        if self._interrupts > 1 and self._is_started:
            self._say("killing the containers")
            self._signal_all("kill")
        else:
            self._stop(
                f"stopping as SageMaker does: SIGTERM, then {self._stop_seconds} s to shut down"
            )

    def _say(self, text: str) -> None:
        say(text, self._program)

    def _stop(self, reason: str) -> None:
        """Stop all containers; before the start, `run` stops them later."""
        self._is_stopping = True
        self._say(reason)
        if self._is_started:
            self._signal_all("stop", "-t", str(self._stop_seconds))

    def _signal_all(self, *command: str) -> None:
        """Run an engine command on all containers, without waiting for it."""
        subprocess.Popen(
            [*self._engine.command, *command, *self._names.values()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
