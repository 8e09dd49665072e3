"""A container in this terminal: started, its log printed, stopped and removed."""

import signal
import subprocess
import sys

from entry_point.job.program import stop_signals
from launch.engine import Engine

# Marks the containers of this project.
LABEL = "managed-training-template.job"


def run_container(
    engine: Engine, program: str, name: str, stop_seconds: int, *arguments: str
) -> int:
    """Run a container until it ends, and remove it; returns its exit code.

    Ctrl-C and SIGTERM stop it as SageMaker does, and the second of them kills it. It is also
    stopped if nobody reads its log any more, as with `| head`.
    """
    process: subprocess.Popen[bytes] | None = None
    requests = 0

    def on_signal(*_: object) -> None:
        nonlocal requests
        requests += 1
        if requests == 1:
            say(program, f"stopping as SageMaker does: SIGTERM, then {stop_seconds} s to shut down")
            signal.alarm(stop_seconds)
            if process:
                process.terminate()  # which `docker run` passes on
        else:
            say(program, "killing the container")
            quietly("kill", name)

    def quietly(*command: str) -> None:
        whole = [*engine.command, *command]
        subprocess.run(whole, stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True)

    numbers = (*stop_signals(), signal.SIGALRM)
    handlers = {number: signal.signal(number, on_signal) for number in numbers}
    limits = [f"--label={LABEL}={name}", f"--stop-timeout={stop_seconds}"]
    try:
        process = subprocess.Popen(
            [*engine.command, "run", "--rm", f"--name={name}", *limits, *arguments],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C does not reach it
        )
        if requests:  # before there was a process
            process.terminate()
        code = process.wait()
    finally:
        # What is left where `docker run` itself ended early.
        quietly("stop", "-t", str(stop_seconds), name)
        quietly("rm", "--force", "--volumes", name)
        signal.alarm(0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if code == 128 + signal.SIGKILL and not requests:
        remedy = "give the engine more memory, or reduce the batch size"
        say(program, f"the job was killed, as when it runs out of memory: {remedy}")
    return code if code >= 0 else 128 - code


def say(program: str, text: str) -> None:
    sys.stdout.write(f"{program}: {text}\n")
    sys.stdout.flush()
