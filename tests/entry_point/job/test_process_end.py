"""A process that ends without freeing its modules still does what others do at exit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

END = "from entry_point.job.program import end_process; "


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("code", [0, 3, 75])
def test_exit_code_and_buffered_output_arrive(code: int) -> None:
    program = f"{END}import sys; print('out'); sys.stderr.write('err'); end_process({code})"
    done = run(program)
    assert (done.returncode, done.stdout, done.stderr) == (code, "out\n", "err")


def test_threads_finish_before_the_exit_handlers_run_in_their_order() -> None:
    done = run(
        f"{END}import atexit, threading, time\n"
        "atexit.register(print, 'first registered'); atexit.register(print, 'last registered')\n"
        "work = lambda: (time.sleep(0.2), print('thread'))\n"
        "threading.Thread(target=work).start()\n"
        "end_process(0)"
    )
    assert done.stdout == "thread\nlast registered\nfirst registered\n"


def test_temporary_folders_are_removed() -> None:
    done = run(
        f"{END}import tempfile; folder = tempfile.TemporaryDirectory(); "
        "print(folder.name); end_process(0)"
    )
    assert done.returncode == 0
    assert run(f"import os; print(os.path.exists({done.stdout.strip()!r}))").stdout == "False\n"


def test_a_frozen_child_does_not_hold_up_the_end() -> None:
    done = run(
        f"{END}import multiprocessing, os, signal, time\n"
        "fork = multiprocessing.get_context('fork')\n"
        "child = fork.Process(target=time.sleep, args=(600,), daemon=True)\n"
        "child.start(); os.kill(child.pid, signal.SIGSTOP)\n"
        "print(child.pid); end_process(0)"
    )
    assert done.returncode == 0
    assert not Path(f"/proc/{done.stdout.strip()}/exe").exists()


def test_an_exit_handler_that_hangs_does_not_hold_up_the_end() -> None:
    """As that of W&B without a network."""
    done = run(
        f"{END}import atexit, time\n"
        "from entry_point.job import program\n"
        "program.EXIT_PATIENCE_S = 0.2\n"
        "atexit.register(time.sleep, 600); print('out'); end_process(3)"
    )
    assert (done.returncode, done.stdout) == (3, "out\n")


def test_output_that_nobody_reads_ends_as_pythons_own_exit_does() -> None:
    def code(ending: str) -> int:
        program = f"{END}import sys; print('x' * 100); {ending}(0)"
        buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        command, quiet = [sys.executable, "-c", program], subprocess.DEVNULL
        with subprocess.Popen(
            command, env=buffered, stdout=subprocess.PIPE, stderr=quiet
        ) as process:
            assert process.stdout is not None
            process.stdout.close()
        return process.returncode

    assert code("end_process") == code("sys.exit") == 120
