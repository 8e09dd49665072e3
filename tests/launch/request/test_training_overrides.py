"""The launcher refuses wrong training overrides locally, with the job's own schema."""

import json
import re
import subprocess
import sys

import pytest

from launch import sagemaker, setup_aws
from launch.request import job_config
from tests.launch.conftest import BUCKET, ROOT
from tests.launch.minimal_job import MINIMAL

CHANNEL = f"job.channels.training=s3://{BUCKET}/photos/"
ADD = "; add job.channels.training=s3://bucket/prefix/"


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("optim.learning_rate=0.1", "optim.learning_rate=0.1: no such key"),
        ("trainer.epochs=-1", "trainer.epochs=-1"),
        ("trainer.epochs=many", "trainer.epochs=many"),
        ("model=resnet51", "model=resnet51: must be one of"),
        ("data.format=zip", "data.format=zip: must be one of"),
        ("name=first-try", "name=first-try: no such key"),
    ],
)
def test_wrong_training_override_ends_the_launch_in_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    override: str,
    reason: str,
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    assert sagemaker.main(["train", *MINIMAL, override]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(reason) and err.count("\n") == 1


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("data=folder", f"data=folder: data.root is not set and there is no channel training{ADD}"),
        ("data=shards", f"data=shards: data.root is not set and there is no channel training{ADD}"),
        (
            "data=folder data.root=/opt/ml/input/data/training/photos",
            f"data.root=/opt/ml/input/data/training/photos: there is no channel training{ADD}",
        ),
        ("data=folder data.root=photos", "data.root=photos: a path on this machine"),
        (
            "data=shards data.root=/baked data.access=stream data.index_root=/opt/ml/input/data/i",
            "data.index_root=/opt/ml/input/data/i: there is no channel i; add job.channels.i=s3://",
        ),
        (
            "experiment=finetune data.root=/baked",
            "model.weights=weights: there is no channel weights; add job.channels.weights=s3://",
        ),
        ("model.weights=resnet18.pth", "model.weights=resnet18.pth: a path on this machine"),
        ("model.weights=training/a.pth", "model.weights=training/a.pth: a path on this machine"),
    ],
)
def test_input_that_no_channel_provides_is_named(override: str, problem: str) -> None:
    (line,) = job_config.training_problems(override.split(), ["other"])
    assert line.startswith(problem)


def test_missing_channel_is_listed_with_everything_else_that_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    assert sagemaker.main(["train", *MINIMAL, "data=folder", "target.device=tpu"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.partition(":")[0] for line in err.splitlines()] == [
        "target.device=tpu",
        "data=folder",
    ]


@pytest.mark.parametrize(
    "overrides",
    [
        "model=resnet50 optim.lr=0.5",
        "data=folder",
        "experiment=finetune",
        "data=folder data.root=/opt/ml/input/data/training/photos",
        "data=folder data.root=/baked model.weights=/baked/resnet18.pth",
        "model.weights=weights/resnet18",
    ],
)
def test_right_training_overrides_pass(overrides: str) -> None:
    assert job_config.training_problems(overrides.split(), ["training", "weights"]) == []


@pytest.mark.parametrize("page", ["README.md", "docs/launch.md"])
def test_dry_runs_in_the_docs_print_a_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    text = (ROOT / page).read_text().replace("\\\n", "")
    dry_runs = re.findall(r'^make ([a-z-]+) DRY_RUN=1 ARGS="(.*?)"', text, re.MULTILINE)
    assert dry_runs
    monkeypatch.setenv("DRY_RUN", "1")
    for target, arguments in dry_runs:
        words = arguments.split()
        done = setup_aws.main(words) if target == "setup-aws" else sagemaker.main(["train", *words])
        out, err = capsys.readouterr()
        assert done == 0 and "{" in out, err


def test_dry_run_needs_neither_torch_nor_an_sdk_nor_credentials() -> None:
    program = (
        "import sys\n"
        "from launch.sagemaker import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "loaded = {'torch', 'numpy', 'sagemaker', 'boto3'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "train", *MINIMAL, CHANNEL, "data=folder"],
        cwd=ROOT,
        env={"DRY_RUN": "1", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["HyperParameters"] == {"hydra_overrides_000": '["data=folder"]'}
