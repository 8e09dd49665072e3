"""Complete jobs in the image: one host, two hosts, a wrong config."""

import json
import os
import re
import shutil
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from launch.engine import Engine
from tests.launch.real_engine.engine_jobs import (
    ENDLESS,
    PER_CLASS,
    ROOT,
    STEP_LINE,
    Job,
    Launch,
    Launcher,
    leftovers,
)
from tests.photographs import NAMES

EPOCHS, BATCH = 2, 16
STEPS = EPOCHS * len(NAMES) * PER_CLASS["train"] // BATCH


def metrics(run: Path) -> list[dict[str, object]]:
    lines = (run / "output/data/metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_one_host_trains_to_completion_and_compiles_once(engine: Engine, trained: Launcher) -> None:
    assert trained.wait() == 0, trained.text()
    run = trained.run_folder
    assert trained.text().count("custom_op: built in") == 1
    assert max(int(str(line["step"])) for line in metrics(run) if "loss" in line) == STEPS
    assert json.loads((run / "model/classes.json").read_text())
    assert (run / "model/model.safetensors").stat().st_size > 0
    owners = {path.stat().st_uid for path in run.rglob("*")}
    assert owners == {os.getuid()}
    assert leftovers(engine, "one") == ""


def test_two_isolated_hosts_train_together(job: Job, prebuilt_image: str) -> None:
    hosts = job.start_two(prebuilt_image)
    codes, logs = [job.wait(host) for host in hosts], [job.log(host) for host in hosts]
    assert codes == [0, 0], logs
    assert "devices  2 x" in logs[0]
    # Two hosts share each batch, so the number of steps is that of one host.
    steps = [int(str(line["step"])) for line in metrics(job.folder) if "loss" in line]
    assert max(steps) == STEPS
    assert (job.folder / "model/model.safetensors").exists()
    assert not (job.folder / "hosts/algo-2/model/model.safetensors").exists()


NET = """
from torch import nn
def net(num_classes):
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(nn.Conv2d(3, 8, 3), pool, nn.Flatten(), nn.Linear(8, num_classes))
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of this repository with a model and a setting of one's own."""
    for folder in ("launch", "entry_point", "custom_op", "configs", "project"):
        shutil.copytree(ROOT / folder, tmp_path / "clone" / folder)
    (tmp_path / "clone/project/fresh.py").write_text(NET)
    (tmp_path / "clone/configs/optim/fresh.yaml").write_text("lr: 0.0123\n")
    return tmp_path / "clone"


def test_own_code_runs_in_isolation_without_a_build(
    prebuilt_image: str, photos: Path, launch: Launch, clone: Path
) -> None:
    settings = {"NETWORK": "none", "PYTHONPATH": str(clone)}
    own = ("model.name=project.fresh.net", "optim=fresh", "job.code=true")
    words = (f"data.root={photos}", *own)
    launcher = launch(prebuilt_image, *words, name="own", settings=settings)
    assert launcher.wait() == 0, launcher.text()
    digest = re.search("docker-train: code ([0-9a-f]{16}): ", launcher.text())
    assert digest and f"your own code {digest[1]}" in launcher.text()
    trained = (launcher.run_folder / "model/config.yaml").read_text()
    assert "project.fresh.net" in trained and "lr: 0.0123" in trained


def test_a_killed_host_ends_the_other(job: Job, prebuilt_image: str) -> None:
    first, second = job.start_two(prebuilt_image, *ENDLESS)
    job.wait_for(first, STEP_LINE)
    job.engine.call("kill", second)
    assert job.wait(first) not in (0, 75), job.log(first)


def test_the_image_packs_a_dataset_trains_on_it_and_predicts(
    job: Job, prebuilt_image: str, photos: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()

    def run(command: str, *overrides: str) -> str:
        mounts = [f"--volume={photos}:/photos:ro", f"--volume={tmp_path}:/opt/ml/all"]
        return job.engine.call(
            "run", "--rm", "--network=none", *mounts, prebuilt_image, command, *overrides
        )

    run("optimize", "source=/photos", "output=/opt/ml/all/packed")
    job.photos = packed
    container = job.start(prebuilt_image, overrides=["data=shards", "trainer.report=true"])
    assert job.wait(container) == 0, job.log(container)
    where = ("model_dir=/opt/ml/all/ml/model", "output_dir=/opt/ml/all/predictions")
    run("predict", *where, "input=/photos/val")
    # As SageMaker leaves the model; the Python of the base has no filters for archives.
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(job.folder / "model", ".")
    model = "model_dir=/opt/ml/all/model.tar.gz"
    run("evaluate", model, "data.root=/photos")
    run("predict", model, "output_dir=/opt/ml/all/from-archive", "input=/photos/val")
    for folder in ("predictions", "from-archive"):
        rows = pq.read_table(tmp_path / folder).num_rows
        assert rows == len(NAMES) * PER_CLASS["val"]
