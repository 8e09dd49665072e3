"""A full disk: the error names the file."""

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from entry_point.config.train_config import TrainConfig
from entry_point.job.program import ExitCode
from entry_point.job.run_folder import RunFolder
from entry_point.training.checkpoints import Checkpoints
from entry_point.training.results.log import RunLog
from entry_point.training.results.loggers import LoggedRun, open_loggers
from tests.entry_point.training import forked
from tests.entry_point.training.training_jobs import write_job

WEIGHTS = {"weight": torch.zeros(1_000_000)}
"""4 MB."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leave no room in the folder's file system."""
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC


def test_a_checkpoint_for_which_there_is_no_room_leaves_the_earlier_one(small_disk: Path) -> None:
    checkpoints = Checkpoints(small_disk, None, 0, writes=True)
    checkpoints.save({"learner": {"model": {"weight": torch.zeros(1000)}}}, 1)
    checkpoints.save({"learner": {"model": WEIGHTS}}, 2)
    with pytest.raises(OSError) as caught:
        checkpoints.close()
    path = small_disk / "step-000000002.pt"
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert [path.name for path in small_disk.iterdir()] == ["step-000000001.pt"]


def test_a_job_that_starts_on_a_full_disk_says_so_in_one_line(
    small_disk: Path, photo_folder: Path
) -> None:
    command, environment = write_job(small_disk, photo_folder)
    fill(small_disk)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == ExitCode.FAILED
    (line,) = done.stderr.splitlines()
    advice = "No space left on device: free up space and run the same command again"
    assert line.startswith(f"train: {small_disk}/") and line.endswith(advice)


@pytest.mark.parametrize(
    ("setting", "file"),
    [
        ("trainer.checkpoint_every_steps=1", "checkpoints/step-000000001.pt"),
        ("trainer.epochs=1", "model/model.safetensors"),
    ],
)
def test_a_job_without_room_for_what_it_saves_ends_with_one_line(
    setting: str, file: str, small_disk: Path, photo_folder: Path
) -> None:
    root = small_disk / "run"
    # Weights and momentum have 6 MB each.
    model = ["model.name=mobilenet_v3_small", setting]
    assert forked.run(root, photo_folder, model) == ExitCode.FAILED
    reason = f"{root / file}: No space left on device: free up space and run the same command again"
    assert (root / "output" / "failure").read_text() == reason
    log = (root / "log").read_text()
    assert f"\ntrain: {reason}\n" in log
    assert "Traceback" not in log


def test_metrics_for_which_there_is_no_room_are_named(small_disk: Path) -> None:
    run = RunFolder(small_disk)
    log = RunLog(run, writes=True)
    log.rewind(0, 0)
    fill(small_disk)
    record = {"epoch": 0, **{f"value{number}": 0.1 for number in range(400)}}
    with pytest.raises(OSError) as caught:
        for step in range(100):
            log.add({**record, "step": step})
    assert caught.value.filename == str(run.metrics)
    log.close()


# The events are written by a thread of TensorBoard's, which fails first.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_disk_without_room_for_a_first_event_is_named(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunFolder(small_disk)
    run.create()
    fill(small_disk)
    for log in open_loggers(LoggedRun("full", run, TrainConfig(), [])):
        log.close()
    (line,) = caplog.messages
    assert line.startswith("logger tensorboard failed and is off; the job continues: ")
    assert str(run.tensorboard) in line


def test_a_build_that_fails_is_not_repeated_by_every_rank(
    tmp_path: Path, photo_folder: Path
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *" -c "*) echo "No space left on device" >&2; exit 1;; esac\n'
        'exec c++ "$@"\n'
    )
    compiler.chmod(0o755)
    environment = {"CXX": str(compiler), "CUSTOM_OP_CACHE": str(tmp_path / "cache")}
    overrides = ["pipeline=threads", "trainer.epochs=1"]
    root = tmp_path / "run"
    code = forked.run(root, photo_folder, overrides, ranks=2, environment=environment)
    assert code == ExitCode.USAGE
    log = (root / "log").read_text()
    assert log.count("custom_op: compiling") == 1, log
    assert "cannot compile the operator" in (root / "output" / "failure").read_text()
