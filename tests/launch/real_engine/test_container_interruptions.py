"""Stopped or killed jobs resume where they were; a stopped launcher leaves nothing behind."""

import os
import re
import signal
from pathlib import Path

from launch.engine import Engine
from tests.launch.real_engine.engine_jobs import (
    ENDLESS,
    START_LINE,
    STEP_LINE,
    Job,
    Launch,
    leftovers,
)

STOPPED = 75


def positions(pattern: re.Pattern[str], log: str) -> list[tuple[int, int]]:
    """(epoch, step) of each log line that matches."""
    return [(int(match[1]), int(match[2])) for match in pattern.finditer(log)]


def checkpoints(folder: Path) -> list[int]:
    """The steps of the checkpoints."""
    names = (path.stem for path in (folder / "checkpoints").glob("step-*.pt"))
    return sorted(int(name.removeprefix("step-")) for name in names)


def test_a_job_stopped_mid_epoch_and_then_killed_resumes_where_it_was(
    job: Job, prebuilt_image: str, many_photos: Path
) -> None:
    job.photos = many_photos
    each_step = [*ENDLESS, "trainer.log_every_steps=1"]
    first = job.start(prebuilt_image, overrides=each_step)
    job.wait_for(first, STEP_LINE, count=3)
    job.engine.call("stop", "-t", "120", first)
    assert job.wait(first) == STOPPED, job.log(first)
    epoch, last = positions(STEP_LINE, job.log(first))[-1]
    # Before the end of an epoch, only the stop writes a checkpoint.
    assert epoch == 0
    assert checkpoints(job.folder) in ([last], [last + 1])

    second = job.start(prebuilt_image, overrides=[*each_step, "trainer.checkpoint_every_steps=5"])
    job.wait_for(second, STEP_LINE, count=12)
    job.engine.call("kill", "-s", "KILL", second)
    assert job.wait(second) == 128 + signal.SIGKILL
    (resumed,) = positions(START_LINE, job.log(second))
    assert resumed in ((0, last), (0, last + 1))
    assert positions(STEP_LINE, job.log(second))[0] == (0, resumed[1] + 1)
    newest = checkpoints(job.folder)[-1]
    assert newest > resumed[1]

    third = job.start(prebuilt_image, overrides=each_step)
    job.wait_for(third, STEP_LINE)
    assert positions(START_LINE, job.log(third)) == [(0, newest)]


def test_a_stop_of_one_host_stops_both_with_a_checkpoint(
    job: Job, prebuilt_image: str, many_photos: Path
) -> None:
    job.photos = many_photos
    hosts = job.start_two(prebuilt_image, *ENDLESS)
    job.wait_for(hosts[0], STEP_LINE)
    job.engine.call("stop", "-t", "120", hosts[1])
    assert [job.wait(host) for host in hosts] == [STOPPED, STOPPED], job.log(hosts[0])
    assert checkpoints(job.folder)


def test_ctrl_c_stops_the_job_with_a_checkpoint(
    engine: Engine, prebuilt_image: str, many_photos: Path, launch: Launch
) -> None:
    words = (f"data.root={many_photos}", *ENDLESS)
    launcher = launch(prebuilt_image, *words, name="interrupted", settings={})
    launcher.wait_for(STEP_LINE)
    os.killpg(launcher.process.pid, signal.SIGINT)
    assert launcher.wait() == STOPPED, launcher.text()
    assert checkpoints(launcher.run_folder)
    assert leftovers(engine, "interrupted") == ""
