"""Jobs that are stopped or killed go on where they were; launchers leave nothing behind."""

import os
import re
import signal
import time
from pathlib import Path

from launch.engine import Engine
from tests.container.jobs import ENDLESS, START_LINE, STEP_LINE, Job, Launch, leftovers

STOPPED = 75


def position(match: re.Match[str]) -> tuple[int, int]:
    """(epoch, step) that a log line names."""
    return int(match[1]), int(match[2])


def checkpoints(folder: Path) -> list[Path]:
    return list((folder / "checkpoints").glob("step-*.pt"))


def test_a_stopped_job_and_then_a_killed_one_go_on_from_their_checkpoints(
    job: Job, prebuilt_image: str
) -> None:
    overrides = [*ENDLESS, "trainer.checkpoint_every_steps=1"]
    first = job.start(prebuilt_image, overrides=overrides)
    job.wait_for(first, STEP_LINE)
    job.engine.call("stop", "-t", "120", first)
    assert job.wait(first) == STOPPED, job.log(first)
    assert checkpoints(job.folder)

    second = job.start(prebuilt_image, overrides=overrides)
    resumed = position(job.wait_for(second, START_LINE))
    assert resumed > (0, 0)
    job.wait_for(second, STEP_LINE, count=2)
    job.engine.call("kill", "-s", "KILL", second)
    assert job.wait(second) == 128 + signal.SIGKILL

    third = job.start(prebuilt_image, overrides=overrides)
    assert position(job.wait_for(third, START_LINE)) > resumed
    job.wait_for(third, STEP_LINE)


def test_ctrl_c_stops_both_hosts_with_a_checkpoint(
    engine: Engine, prebuilt_image: str, photos: Path, launch: Launch
) -> None:
    launcher = launch(
        prebuilt_image,
        f"data.root={photos}",
        *ENDLESS,
        name="interrupted",
        settings={"HOSTS": "2"},
    )
    launcher.wait_for(STEP_LINE)
    os.killpg(launcher.process.pid, signal.SIGINT)
    assert launcher.wait() == STOPPED, launcher.text()
    assert checkpoints(launcher.run_folder)
    assert leftovers(engine) == ""


def test_a_killed_launcher_leaves_no_container_and_no_network(
    engine: Engine, prebuilt_image: str, photos: Path, launch: Launch
) -> None:
    launcher = launch(prebuilt_image, f"data.root={photos}", *ENDLESS, name="killed", settings={})
    launcher.wait_for(STEP_LINE)
    launcher.process.kill()
    launcher.process.wait()
    deadline = time.monotonic() + 120
    while leftovers(engine):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert checkpoints(launcher.run_folder)
