"""Places that are tight: no network, nothing writable, somebody else's uid, hardly any /dev/shm."""

from pathlib import Path

import pytest

from tests.container.jobs import Job

STRANGER = 12345
LOCKED_UP = ("--read-only", f"--user={STRANGER}:{STRANGER}", "--cap-drop=ALL")


def test_a_prebuilt_image_trains_where_only_tmp_and_opt_ml_are_writable(
    job: Job, prebuilt_image: str
) -> None:
    job.give_to(STRANGER)
    container = job.start(prebuilt_image, *LOCKED_UP, "--tmpfs=/tmp")
    assert job.wait(container) == 0, job.log(container)
    assert "custom_op: building" not in job.log(container)
    assert {p.stat().st_uid for p in (job.folder / "model").iterdir()} == {STRANGER}


def test_the_operator_is_compiled_into_tmp_where_the_image_is_read_only(
    job: Job, image: str
) -> None:
    job.give_to(STRANGER)
    container = job.start(image, *LOCKED_UP, "--tmpfs=/tmp:exec")
    assert job.wait(container) == 0, job.log(container)
    assert job.log(container).count("custom_op: built in") == 1


def test_an_operator_made_for_another_machine_is_compiled_again(
    job: Job, prebuilt_image: str
) -> None:
    """Another compiler setting makes another key, as another processor would."""
    container = job.start(prebuilt_image, "--env=CXX=g++", overrides=["trainer.epochs=1"])
    assert job.wait(container) == 0, job.log(container)
    assert job.log(container).count("custom_op: built in") == 1


@pytest.mark.parametrize("pipeline", ["workers", "pillow"])
def test_a_tiny_dev_shm_is_enough(job: Job, prebuilt_image: str, pipeline: str) -> None:
    container = job.start(
        prebuilt_image, "--shm-size=1m", overrides=[f"pipeline={pipeline}", "trainer.epochs=1"]
    )
    assert job.wait(container) == 0, job.log(container)


def test_a_channel_cannot_be_written(job: Job, prebuilt_image: str, photos: Path) -> None:
    before = sorted(photos.rglob("*"))
    container = job.start(prebuilt_image, overrides=["trainer.epochs=1"])
    assert job.wait(container) == 0, job.log(container)
    assert sorted(photos.rglob("*")) == before
