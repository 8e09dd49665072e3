"""Whole jobs in the image: one host, two hosts, and a configuration that is wrong."""

import json
import os
from pathlib import Path

from launch.engine import Engine
from tests.container.jobs import ENDLESS, STEP_LINE, Job, Launch, leftovers
from tests.container.photos import CLASSES, PER_CLASS

EPOCHS, BATCH = 2, 16
STEPS = EPOCHS * len(CLASSES) * PER_CLASS["train"] // BATCH


def metrics(run: Path) -> list[dict[str, object]]:
    lines = (run / "output/data/metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_one_host_trains_to_completion_and_compiles_once(
    engine: Engine, image: str, photos: Path, launch: Launch
) -> None:
    launcher = launch(image, f"data.root={photos}", name="one", settings={})
    assert launcher.wait() == 0, launcher.text()
    run = launcher.run_folder
    assert launcher.text().count("custom_op: built in") == 1
    assert max(int(str(line["step"])) for line in metrics(run) if "loss" in line) == STEPS
    assert json.loads((run / "model/classes.json").read_text())
    assert (run / "model/model.pt").stat().st_size > 0
    owners = {path.stat().st_uid for path in run.rglob("*")}
    assert owners == {os.getuid()}
    assert leftovers(engine) == ""


def test_two_isolated_hosts_train_together_and_compile_once_each(
    engine: Engine, image: str, photos: Path, launch: Launch
) -> None:
    launcher = launch(
        image,
        f"data.root={photos}",
        name="two",
        settings={"HOSTS": "2", "NETWORK": "none"},
    )
    assert launcher.wait() == 0, launcher.text()
    text, run = launcher.text(), launcher.run_folder
    built = [line for line in text.splitlines() if "custom_op: built in" in line]
    # Each host has an image of its own to compile in; only the first tells of its work.
    assert [line.split(" | ")[0] for line in built].count("algo-1") == 1
    assert "devices  2 x" in text
    # Two hosts share each batch: as many steps as one host would take.
    steps = [int(str(line["step"])) for line in metrics(run) if "loss" in line]
    assert max(steps) == STEPS
    assert (run / "model/model.pt").exists()
    assert not (run / "hosts/algo-2/model/model.pt").exists()
    assert leftovers(engine) == ""


def test_a_wrong_config_leaves_its_reason_and_fails(job: Job, prebuilt_image: str) -> None:
    container = job.start(prebuilt_image, overrides=["trainer.epochs=-1"])
    assert job.wait(container) not in (0, 75)
    assert "trainer.epochs=-1" in (job.folder / "output/failure").read_text()


def test_a_host_that_dies_takes_the_job_down(
    engine: Engine, prebuilt_image: str, photos: Path, launch: Launch
) -> None:
    launcher = launch(
        prebuilt_image,
        f"data.root={photos}",
        *ENDLESS,
        name="dies",
        settings={"HOSTS": "2"},
    )
    launcher.wait_for(STEP_LINE)
    engine.call("kill", f"dies-{launcher.process.pid}-algo-2")
    assert launcher.wait() not in (0, 75), launcher.text()
    assert leftovers(engine) == ""
