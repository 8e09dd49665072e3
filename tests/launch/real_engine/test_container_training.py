"""Complete jobs in the image: one host, two hosts, a wrong config."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from entry_point.config import hyperparameters
from entry_point.job.program import UserError
from launch.engine import Engine
from tests.launch.real_engine.engine_jobs import (
    ENDLESS,
    OVERRIDES,
    ROOT,
    STEP_LINE,
    Job,
    Launch,
    leftovers,
)
from tests.launch.real_engine.photos import CLASSES, PER_CLASS

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
    assert (run / "model/model.safetensors").stat().st_size > 0
    owners = {path.stat().st_uid for path in run.rglob("*")}
    assert owners == {os.getuid()}
    assert leftovers(engine, "one") == ""


def test_two_isolated_hosts_train_together_and_compile_once_each(job: Job, image: str) -> None:
    hosts = job.start_two(image)
    codes, logs = [job.wait(host) for host in hosts], [job.log(host) for host in hosts]
    assert codes == [0, 0], logs
    assert [log.count("custom_op: built in") for log in logs] == [1, 1]
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


OWN_WORDS = ("model.name=project.fresh.net", "optim=fresh")
NO_ACCOUNT = (
    "job.role=arn:aws:iam::123456789012:role/any",
    "job.output=s3://bucket/runs",
    "job.channels.training=s3://bucket/photos/",
    f"target.image=123456789012.dkr.ecr.eu-west-1.amazonaws.com/training@sha256:{'0' * 64}",
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of this repository with a model and a setting of one's own."""
    for folder in ("launch", "entry_point", "custom_op", "configs", "project"):
        shutil.copytree(ROOT / folder, tmp_path / "clone" / folder)
    (tmp_path / "clone/project/fresh.py").write_text(NET)
    (tmp_path / "clone/configs/optim/fresh.yaml").write_text("lr: 0.0123\n")
    return tmp_path / "clone"


def require_own_words(run: Path) -> None:
    trained = (run / "model/config.yaml").read_text()
    assert "project.fresh.net" in trained and "lr: 0.0123" in trained


def test_own_code_runs_in_isolation_without_a_build(
    prebuilt_image: str, photos: Path, launch: Launch, clone: Path
) -> None:
    settings = {"NETWORK": "none", "PYTHONPATH": str(clone)}
    words = (f"data.root={photos}", *OWN_WORDS, "job.code=true")
    launcher = launch(prebuilt_image, *words, name="own", settings=settings)
    assert launcher.wait() == 0, launcher.text()
    digest = re.search("docker-train: code ([0-9a-f]{16}): ", launcher.text())
    assert digest and f"your own code {digest[1]}" in launcher.text()
    require_own_words(launcher.run_folder)


def test_the_same_words_train_the_same_code_on_the_host_and_in_the_dry_run(
    photos: Path, clone: Path
) -> None:
    words = [*OVERRIDES, *OWN_WORDS]
    local = [sys.executable, "-m", "launch.local", "name=own", f"data.root={photos}", *words]
    done = subprocess.run(local, cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    require_own_words(clone / "runs/own")

    host = str(ROOT / ".venv-launch/bin/python")
    paid = [host, "-m", "launch.sagemaker", "train", *words, *NO_ACCOUNT, "job.code=true"]
    dry = {**os.environ, "DRY_RUN": "1", "AWS_DEFAULT_REGION": "eu-west-1"}
    done = subprocess.run(paid, cwd=clone, env=dry, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    request = json.loads(done.stdout[done.stdout.index("{") :])
    assert request["Environment"]["OWN_CODE"] in {
        tag["Value"] for tag in request["Tags"] if tag["Key"] == "code"
    }
    sent = hyperparameters.decode(request["HyperParameters"])
    last = {word.partition("=")[0]: word for word in words}  # of one key, the last counts
    assert {*last.values()} <= {*sent}


def test_inputs_of_a_host_are_read_only(
    engine: Engine, prebuilt_image: str, photos: Path, launch: Launch
) -> None:
    launcher = launch(prebuilt_image, f"data.root={photos}", *ENDLESS, name="given", settings={})
    launcher.wait_for(STEP_LINE)
    inside = ("exec", launcher.container(), "touch")
    with pytest.raises(UserError, match="Read-only file system"):
        engine.call(*inside, "/opt/ml/input/data/training/new")
    engine.call(*inside, "/opt/ml/output/data/new")


def test_a_wrong_config_fails_and_writes_the_failure_file(job: Job, prebuilt_image: str) -> None:
    container = job.start(prebuilt_image, overrides=["trainer.epochs=-1"])
    assert job.wait(container) not in (0, 75)
    assert "trainer.epochs=-1" in (job.folder / "output/failure").read_text()


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
        assert rows == len(CLASSES) * PER_CLASS["val"]
