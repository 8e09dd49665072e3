"""A container in this terminal: started, its log printed, stopped and removed."""

import os
import signal
import subprocess
import sys

from entry_point.contract.program import UserError, stop_signals
from launch.engine import Engine

# Marks the containers of this project.
LABEL = "managed-training-template.job"


class Container:
    """A context manager that removes its container at the end.

    Ctrl-C and SIGTERM stop the container; the second of them kills it.
    """

    def __init__(self, engine: Engine, program: str, name: str, stop_seconds: int) -> None:
        self._engine, self._program, self._name = engine, program, name
        self._stop_seconds = stop_seconds
        self._exists = self._is_started = self._is_asked = self._is_stopping = False

    def __enter__(self) -> "Container":
        self._handlers = {
            number: signal.signal(number, lambda *_: self._on_signal()) for number in stop_signals()
        }
        return self

    def __exit__(self, *_: object) -> None:
        if self._exists:
            try:
                self._engine.call("rm", "--force", "--volumes", self._name)
            except UserError as error:
                self._say(str(error))
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def start(self, *arguments: str) -> None:
        """Start the container in the background; raises UserError."""
        if self._is_asked:
            raise UserError("stopped before the job started")
        self._exists = True  # perhaps, even if it does not start
        self._engine.call(
            "run",
            "--detach",
            f"--name={self._name}",
            f"--label={LABEL}={self._name}",
            f"--stop-timeout={self._stop_seconds}",
            # The engine's default log driver may not allow reading the logs back.
            "--log-driver=json-file",
            *arguments,
        )
        self._is_started = True
        if self._is_asked and not self._is_stopping:
            self._stop()

    def follow(self) -> int:
        """Print the log until the container ends; returns its exit code."""
        log = subprocess.Popen(
            [*self._engine.command, "logs", "--follow", self._name],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C does not reach it
        )
        if log.wait():  # the reader has enough, as with `| head`
            self._stop()
        code = int(self._engine.call("wait", self._name))
        if code == 128 + signal.SIGKILL and not self._is_stopping:
            remedy = "give the engine more memory, or reduce the batch size"
            self._say(f"the job was killed, as when it runs out of memory: {remedy}")
        return code

    def _on_signal(self) -> None:
        self._is_asked = True
        if self._is_stopping:
            self._say("killing the container")
            self._command("kill")
        elif self._is_started:
            self._stop()

    def _stop(self) -> None:
        self._is_stopping = True
        self._say(f"stopping as SageMaker does: SIGTERM, then {self._stop_seconds} s to shut down")
        self._command("stop", "-t", str(self._stop_seconds))

    def _command(self, *command: str) -> None:
        """Run an engine command on the container, without waiting for it."""
        subprocess.Popen(
            [*self._engine.command, *command, self._name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _say(self, text: str) -> None:
        try:
            sys.stdout.write(f"{self._program}: {text}\n")
            sys.stdout.flush()
        except BrokenPipeError:
            # Discard further output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
