"""A request to stop ends a job that has not taken a step at once: nothing is to be saved."""

import signal
import time
from pathlib import Path

import pytest

from entry_point.job.program import ExitCode
from tests.entry_point.job.test_processes import ENDLESS, TWO_RANKS
from tests.entry_point.job.test_signals import wait_for_sigterm_handler
from tests.entry_point.training.forked_ranks import rank_processes
from tests.entry_point.training.training_jobs import start_job

NEVER_BUILT = "model.name=tests.entry_point.job.endless_start.endless_net"
STOPPED = "train: stopped before the first step, with nothing to save\n"


@pytest.mark.parametrize(
    ("ranks", "number"),
    [
        ((), signal.SIGTERM),
        ((), signal.SIGINT),
        ((), signal.SIGHUP),
        (TWO_RANKS, signal.SIGTERM),
    ],
)
def test_ranks_that_do_not_train_yet_are_not_waited_for(
    ranks: tuple[str, ...], number: signal.Signals, tmp_path: Path, photo_folder: Path
) -> None:
    process = start_job(tmp_path, photo_folder, [*ENDLESS, *ranks, NEVER_BUILT])
    while len(list(tmp_path.glob("building-*"))) < (2 if ranks else 1):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)  # the ranks get 110 s once they train
    assert process.returncode == ExitCode.STOPPED, output
    assert output.endswith(STOPPED)
    assert not (tmp_path / "output" / "failure").exists()
    while rank_processes(tmp_path):  # the test's time limit ends this loop
        time.sleep(0.05)


@pytest.mark.parametrize("delay", [0.05, 0.1, 0.2, 0.4, 0.8, 1.6])
def test_a_stop_in_the_first_second_ends_without_a_traceback(
    delay: float, tmp_path: Path, photo_folder: Path
) -> None:
    process = start_job(tmp_path, photo_folder, [*ENDLESS, NEVER_BUILT])
    wait_for_sigterm_handler(process.pid)
    time.sleep(delay)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == ExitCode.STOPPED, output
    assert "Traceback" not in output and (not output or output.endswith(STOPPED))
    assert not (tmp_path / "output" / "failure").exists()
