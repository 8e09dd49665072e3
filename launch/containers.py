"""The containers of one job: started, their logs merged, stopped and removed."""

import os
import signal
import subprocess
import sys
import threading
from queue import Empty, SimpleQueue

from entry_point.contract.program import UserError, stop_signals
from launch.engine import Engine

# How long the other hosts have to end by themselves after one has failed.
PEER_GRACE_SECONDS = 30.0
# Marks the containers and networks of this project.
LABEL = "managed-training-template.job"


class Containers:
    """A context manager that removes the job's containers and network at its end."""

    def __init__(self, engine: Engine, program: str, job: str, stop_seconds: int) -> None:
        self._engine, self._job, self._stop_seconds = engine, job, stop_seconds
        self._program = program
        self._names: dict[str, str] = {}
        self._networks: list[str] = []
        # A host and its exit code, or None and the signal that this process got.
        self._events: SimpleQueue[tuple[str | None, int]] = SimpleQueue()
        self._print = threading.Lock()
        self._is_stopping = False

    def __enter__(self) -> "Containers":
        self._handlers = {
            number: signal.signal(number, lambda number, _frame: self._events.put((None, number)))
            for number in stop_signals()
        }
        return self

    def __exit__(self, *_: object) -> None:
        for command in (
            *(["rm", "--force", "--volumes", name] for name in self._names.values()),
            *(["network", "rm", name] for name in self._networks),
        ):
            try:
                self._engine.call(*command)
            except UserError as error:
                self._say(str(error))
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def create_network(self, isolated: bool) -> str:
        """Create the job's network, without access to others if isolated; returns its name."""
        name = f"{self._job}-network"
        options = ["--internal"] if isolated else []
        self._engine.call("network", "create", *options, f"--label={LABEL}={self._job}", name)
        self._networks.append(name)
        return name

    def start(self, host: str, *arguments: str) -> None:
        """Start the container of one host in the background; raises UserError."""
        if not self._events.empty():
            raise UserError("stopped before the job started")
        self._names[host] = f"{self._job}-{host}"
        self._engine.call(
            "run",
            "--detach",
            f"--name={self._names[host]}",
            f"--label={LABEL}={self._job}",
            f"--stop-timeout={self._stop_seconds}",
            # The engine's default log driver may not allow reading the logs back.
            "--log-driver=json-file",
            *arguments,
        )

    def follow(self) -> int:
        """Merge the logs until every host has ended; returns the first failure's code, or 0."""
        for host in self._names:
            threading.Thread(target=self._read, args=(host,), daemon=True).start()
        codes: list[int] = []
        while len(codes) < len(self._names):
            limited = any(codes) and not self._is_stopping
            try:
                ended, number = self._events.get(timeout=PEER_GRACE_SECONDS if limited else None)
            except Empty:
                self._stop("a host has failed; stopping the others")
                continue
            if ended:
                codes.append(number)
                self._report(ended, number)
            else:
                self._on_signal(number)
        return next((code for code in codes if code), 0)

    def _read(self, host: str) -> None:
        """Print the lines of one container until it ends, then queue its exit code."""
        prefix = f"{host} | " if len(self._names) > 1 else ""
        process = subprocess.Popen(
            [*self._engine.command, "logs", "--follow", self._names[host]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C does not reach it
        )
        assert process.stdout is not None
        for line in process.stdout:
            self._show(f"{prefix}{line.rstrip()}\n")
        process.wait()
        try:
            code = int(self._engine.call("wait", self._names[host]))
        except UserError as error:
            self._show(f"{prefix}lost contact: {error}\n")
            code = 1
        self._events.put((host, code))

    def _show(self, line: str) -> None:
        """Print a line. If the reader of the output is gone, stop the job, as Ctrl-C does."""
        try:
            with self._print:
                sys.stdout.write(line)
                sys.stdout.flush()
        except BrokenPipeError:
            # Discard further output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._events.put((None, signal.SIGPIPE))

    def _say(self, text: str) -> None:
        self._show(f"{self._program}: {text}\n")

    def _report(self, host: str, code: int) -> None:
        if code == 128 + signal.SIGKILL and not self._is_stopping:
            remedy = "give the engine more memory, or reduce the batch size"
            self._say(f"{host} was killed, as when it runs out of memory: {remedy}")
        elif code and len(self._names) > 1:
            self._say(f"{host} ended with exit code {code}")

    def _on_signal(self, number: int) -> None:
        """Stop the job; on a second Ctrl-C or SIGTERM, kill it."""
        if self._is_stopping and number != signal.SIGPIPE:
            self._say("killing the containers")
            self._signal_all("kill")
        else:
            self._stop(
                f"stopping as SageMaker does: SIGTERM, then {self._stop_seconds} s to shut down"
            )

    def _stop(self, reason: str) -> None:
        self._is_stopping = True
        self._say(reason)
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
