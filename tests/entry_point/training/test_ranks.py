"""Runs of several ranks that resume, with the same or another number of ranks."""

import os
import resource
import shutil
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from entry_point.config.train_config import load_train_config
from entry_point.job.devices import Devices
from entry_point.job.program import ExitCode
from entry_point.training import trainer
from entry_point.training.checkpoints import copy_to_cpu
from entry_point.training.learner import Learner
from entry_point.training.results.report import FinishedRun, write_results
from tests.entry_point.job.test_processes import TWO_RANKS, wait_for_steps
from tests.entry_point.training import forked
from tests.entry_point.training.checkpoints.test_interrupted_runs import OVERRIDES, assert_same_end
from tests.entry_point.training.forked_ranks import rank_processes
from tests.entry_point.training.gloo_ranks import call_ranks
from tests.entry_point.training.tasks.label_sources import classes, task_of
from tests.entry_point.training.training_jobs import TINY, read_records, start_job, timeless
from tests.entry_point.training.ways import SOURCES

MODELS = "model.name=tests.own_models"


def test_a_stopped_and_killed_job_of_two_ranks_ends_bit_identical(
    tmp_path: Path, photo_folder: Path
) -> None:
    # With a checkpoint every two steps, a killed run repeats some.
    plan = [*OVERRIDES, *TWO_RANKS, "trainer.epochs=6", "trainer.evaluate_every_epochs=3"]
    overrides = [*plan, "trainer.checkpoint_every_steps=2"]
    assert forked.run(tmp_path / "uninterrupted", photo_folder, overrides, ranks=2) == 0
    root = tmp_path / "interrupted"
    for number, step, code in (
        (signal.SIGTERM, 4, ExitCode.STOPPED),
        (signal.SIGKILL, 10, -signal.SIGKILL),
    ):
        process = start_job(root, photo_folder, overrides)
        wait_for_steps(root, process, step)
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == code, output
        while rank_processes(root):  # the test's time limit ends an endless wait
            time.sleep(0.05)
    assert forked.run(root, photo_folder, overrides, ranks=2) == 0
    assert "resuming from" in (root / "log").read_text()
    assert_same_end(root, tmp_path / "uninterrupted")


def test_a_job_stopped_on_two_ranks_resumes_on_one_and_sees_each_sample_once(
    tmp_path: Path, photo_folder: Path
) -> None:
    job = [f"{MODELS}.stopping_net", "trainer.batch_size=8", "trainer.log_every_steps=1"]
    assert forked.run(tmp_path / "one", photo_folder, job) == ExitCode.FINISHED
    assert forked.run(tmp_path / "two", photo_folder, job, ranks=2) == ExitCode.STOPPED
    assert read_records(tmp_path / "two")[-1]["step"] == 4  # of an epoch's six
    assert forked.run(tmp_path / "two", photo_folder, job) == ExitCode.FINISHED
    one, two = (timeless(read_records(tmp_path / name)) for name in ("one", "two"))
    for expected, got in zip(one, two, strict=True):
        assert got == pytest.approx(expected, abs=1e-4)


def _train_with_a_new_learner_from_step_two(devices: Devices, folder: Path) -> None:
    config, _ = load_train_config([*TINY, *OVERRIDES])
    first, second = (
        Learner(config, devices, task_of(classes(8)), steps_per_epoch=9, channels=folder)
        for _ in range(2)
    )
    for learner, steps in ((first, range(2)), (second, range(2, 5)), (first, range(2, 5))):
        if learner is second:
            second.load_state(copy_to_cpu(first.state()))
        for step in steps:
            torch.manual_seed(100 * step + devices.rank)
            learner.loss(torch.randn(4, 3, 32, 32), torch.randint(8, (4,)), step)
            learner.update()
    one, other = first.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_three_restarted_ranks_resume_bit_identical(tmp_path: Path) -> None:
    """Sums of two gradients do not depend on their order; sums of three do."""
    call_ranks(_train_with_a_new_learner_from_step_two, 3, tmp_path)


def _peak_memory() -> int:
    """Bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _receive_a_state(devices: Devices, folder: Path) -> None:
    state = {f"{n}": torch.full((1 << 20,), float(n)) for n in range(32)}
    before = _peak_memory()
    received = devices.from_first(state if devices.is_first else None)
    share = (_peak_memory() - before) / (128 << 20)
    assert share < (0.3 if devices.is_first else 1.3), (folder, share)
    assert all(torch.equal(received[key], value) for key, value in state.items())


def test_the_ranks_receive_a_state_in_little_more_memory_than_it_takes(tmp_path: Path) -> None:
    call_ranks(_receive_a_state, 2, tmp_path)


def trained_images(root: Path) -> list[str]:
    return sorted((root / "seen").read_text().splitlines())


def test_a_stream_takes_each_sample_once_if_the_ranks_change_between_epochs(
    tmp_path: Path, packed_photos: Path
) -> None:
    overrides = [*SOURCES["stream"], f"{MODELS}.noting_net", "trainer.batch_size=12"]
    assert forked.run(tmp_path / "one", packed_photos, overrides) == 0
    first = [*overrides, "trainer.epochs=1"]
    assert forked.run(tmp_path / "changed", packed_photos, first, ranks=2) == 0
    assert forked.run(tmp_path / "changed", packed_photos, overrides) == 0
    images = trained_images(tmp_path / "one")
    assert len(set(images)) == 2 * 48
    assert trained_images(tmp_path / "changed") == images


def _export_slowly() -> None:
    """The first rank's export takes longer than the others wait for a peer in a collective call.

    Meanwhile, none of them may look at what it writes.
    """

    def write_slowly(run: FinishedRun) -> None:
        for group in (dist.group.WORLD, run.devices.cpu_group):
            _set_timeout(timedelta(seconds=0.5), group)
        if run.devices.is_first:
            time.sleep(2)
        write_results(run)

    pytest.MonkeyPatch().setattr(trainer, "write_results", write_slowly)
    if os.environ["RANK"] != "0":
        pytest.MonkeyPatch().setattr(trainer, "closing_lines", None)


# torch 2.11 has only the private one.
_set_timeout: Any = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout


def test_an_export_that_outlasts_the_timeout_of_collective_calls_does_not_fail_the_job(
    tmp_path: Path, photo_folder: Path
) -> None:
    assert forked.run(tmp_path, photo_folder, (), ranks=2, prepare=_export_slowly) == 0
    assert (tmp_path / "model" / "model.safetensors").is_file()


def _die_in_the_export() -> None:
    def die(run: FinishedRun) -> None:
        if run.devices.is_first:
            os.kill(os.getpid(), signal.SIGKILL)

    pytest.MonkeyPatch().setattr(trainer, "write_results", die)


def test_the_first_ranks_death_in_the_export_ends_the_other_ranks(
    tmp_path: Path, photo_folder: Path
) -> None:
    """Also on the other hosts, whose command `train` does not see that death."""
    ranks = forked.start_ranks(tmp_path, photo_folder, (), 2, prepare=_die_in_the_export)
    for rank in ranks:
        rank.join(timeout=120)
    codes = [rank.exitcode for rank in ranks]
    assert codes == [-signal.SIGKILL, ExitCode.FAILED]


def test_the_first_rank_says_what_all_know_and_each_rank_what_it_meets(
    tmp_path: Path, photo_folder: Path
) -> None:
    """Both ranks validate on some of the damaged images."""
    shutil.copytree(photo_folder, tmp_path / "photos")
    damaged = sorted((tmp_path / "photos" / "val").glob("*/*.jpg"))[::3]
    for file in damaged:
        file.write_bytes(file.read_bytes()[:200])
    overrides = [
        *(f"{MODELS}.warning_net", "data.max_bad_fraction=0.9", "trainer.epochs=1"),
        *("optim.warmup_epochs=2", "data.balance=classes", "task.class_weights=auto"),
    ]
    assert forked.run(tmp_path, tmp_path / "photos", overrides, ranks=2) == 0
    log = (tmp_path / "log").read_text()
    of_its_build = ["UserWarning: an own model warns", "an own model logs"]
    assert {log.count(line) for line in of_its_build} == {2}  # it is built again, see Learner
    of_all = [
        *("warning_net: ends in a softmax", "so that they count twice"),
        "optim.warmup_epochs=2: the learning rate rises",
    ]
    assert {line: log.count(line) for line in of_all} == dict.fromkeys(of_all, 1)
    skipped = {file: log.count(f"skipped {file}") for file in damaged}
    assert set(skipped.values()) == {1}, skipped
