"""Restricted containers: no network, read-only root, another user, a tiny /dev/shm."""

from pathlib import Path

from tests.launch.real_engine.engine_jobs import Job

STRANGER = 12345
LOCKED_UP = ("--read-only", f"--user={STRANGER}:{STRANGER}", "--cap-drop=ALL")


def another_machine(job: Job) -> str:
    """An option for a compiler that defines other macros, as one for another processor would."""
    compiler = job.folder / "input" / "another-machine-c++"
    compiler.write_text('#!/bin/sh\nexec c++ -DANOTHER_MACHINE "$@"\n')
    compiler.chmod(0o755)
    return f"--env=CXX=/opt/ml/input/{compiler.name}"


def test_a_prebuilt_image_trains_if_only_tmp_and_opt_ml_are_writable(
    job: Job, prebuilt_image: str, photos: Path
) -> None:
    before = sorted(photos.rglob("*"))
    job.give_to(STRANGER)
    container = job.start(
        prebuilt_image, *LOCKED_UP, "--tmpfs=/tmp", overrides=["trainer.epochs=1"]
    )
    assert job.wait(container) == 0, job.log(container)
    assert "custom_op: compiling" not in job.log(container)
    assert {p.stat().st_uid for p in (job.folder / "model").iterdir()} == {STRANGER}
    assert sorted(photos.rglob("*")) == before


def test_an_operator_built_for_another_machine_is_rebuilt_in_tmp(
    job: Job, prebuilt_image: str
) -> None:
    job.give_to(STRANGER)
    container = job.start(
        prebuilt_image,
        *LOCKED_UP,
        "--tmpfs=/tmp:exec",
        another_machine(job),
        overrides=["trainer.epochs=1"],
    )
    assert job.wait(container) == 0, job.log(container)
    assert job.log(container).count("custom_op: built in") == 1


def test_a_noexec_tmp_is_an_error_with_the_fix(job: Job, prebuilt_image: str) -> None:
    job.give_to(STRANGER)
    container = job.start(prebuilt_image, *LOCKED_UP, "--tmpfs=/tmp", another_machine(job))
    assert job.wait(container) not in (0, 75)
    failure = (job.folder / "output/failure").read_text()
    assert "noexec" in failure and "CUSTOM_OP_CACHE" in failure


def test_a_tiny_dev_shm_is_enough_for_worker_processes(job: Job, prebuilt_image: str) -> None:
    overrides = ["pipeline=workers", "pipeline.num_workers=2", "trainer.epochs=1"]
    container = job.start(prebuilt_image, "--shm-size=1m", overrides=overrides)
    assert job.wait(container) == 0, job.log(container)
