"""The launcher refuses wrong training overrides locally, with the job's own schema."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from entry_point.config.train_config import load_train_config
from launch import setup_aws
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker.checks import job_problems
from launch.sagemaker.config import Channel, Job, LaunchConfig, Target
from launch.sagemaker.training import load_spec
from tests.launch.conftest import BUCKET, ROOT
from tests.launch.minimal_job import MINIMAL

CHANNEL = f"job.channels.training=s3://{BUCKET}/photos/"
ADD = "; add job.channels.training=s3://bucket/prefix/"


def problems(overrides: str, target: Target, *channels: str) -> list[str]:
    train, _ = load_train_config(overrides.split())
    job = Job(channels={name: Channel(s3=f"s3://{BUCKET}/x/") for name in channels})
    return list(job_problems(train, LaunchConfig(target=target, job=job)))


@pytest.mark.parametrize(
    ("override", "problem"),
    [
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
            "model.weights=pretrained: there is no channel pretrained; after `make weights "
            "ARGS=resnet50` and `make upload` add job.channels.pretrained=s3://",
        ),
        ("model.weights=resnet18.pth", "model.weights=resnet18.pth: a path on this machine"),
        ("model.weights=training/a.pth", "model.weights=training/a.pth: a path on this machine"),
    ],
)
def test_input_that_no_channel_provides_is_named(override: str, problem: str) -> None:
    (line,) = problems(override, Target(), "other")
    assert line.startswith(problem)


HOSTS_3 = Target(instance_type="ml.p5.48xlarge", instance_count=3)


@pytest.mark.parametrize(
    ("override", "target", "problem"),
    [
        (
            "trainer.batch_size=100",
            HOSTS_3,
            "trainer.batch_size=100: must be a multiple of the 3 ranks that share it on 3 hosts",
        ),
        (
            "trainer.batch_size=64 optim.accumulate=8 trainer.nproc_per_host=8",
            HOSTS_3,
            "trainer.batch_size=64: must be a multiple of 192, ranks=24 x optim.accumulate=8 on "
            "3 hosts",
        ),
        ("data=folder data.root=/", Target(), "data.root=/: a path on this machine"),
        (
            "trainer.batch_size=9",
            Target(instance_count=2),
            "trainer.batch_size=9: must be a multiple of the 2 ranks",
        ),
        (
            "data=folder data.root=/home/me/photos",
            Target(),
            "data.root=/home/me/photos: a path on this machine",
        ),
        (f"data=folder data.root={ROOT}", Target(), f"data.root={ROOT}: a path on this machine"),
    ],
)
def test_what_ends_the_job_on_its_machines_is_told_on_the_host(
    override: str, target: Target, problem: str
) -> None:
    (line,) = problems(override, target, "training")
    assert problem in line


@pytest.mark.parametrize(
    ("override", "target"),
    [
        ("trainer.batch_size=96", HOSTS_3),
        ("trainer.batch_size=100 trainer.device=cpu", replace(HOSTS_3, instance_count=1)),
        ("trainer.batch_size=7", Target(instance_type="ml.g99.xlarge")),
        ("trainer.batch_size=7", Target(instance_type="ml.p5")),
        ("data=folder data.root=/homeless", Target()),
        (f"data=folder data.root=/{'x' * 300}", Target()),
        ("model.name=my_models.net", Target()),
    ],
)
def test_a_job_that_fits_its_machines_passes(override: str, target: Target) -> None:
    assert problems(override, target, "training") == []


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
    assert problems(overrides, Target(), "training", "weights", "pretrained") == []


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
        printed = "aws cloudformation deploy" if target == "setup-aws" else "{"
        assert done == 0 and printed in out, err


def test_dry_run_needs_neither_torch_nor_an_sdk_nor_credentials() -> None:
    program = (
        "import sys\n"
        "from launch.sagemaker.__main__ import main\n"
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
    assert json.loads(done.stdout)["HyperParameters"] == {"data": "folder"}


def test_the_metrics_of_an_own_task_get_expressions() -> None:
    overrides = ["data=folder", "task.name=project.tasks.Own", "task.metrics=[kappa]"]
    request = load_spec([*MINIMAL, *overrides]).request()
    names = [m["Name"] for m in request["AlgorithmSpecification"]["MetricDefinitions"]]
    assert "validation:kappa" in names and "validation:accuracy" in names and len(names) <= 40


SHARDED = "ShardedByS3Key"
PREFIX = f"S3DataType:S3Prefix,S3Uri:s3://{BUCKET}/shards/"


@pytest.mark.parametrize(
    ("hosts", "channel", "refused"),
    [
        (2, f"training={{s3:s3://{BUCKET}/shards/,distribution:{SHARDED}}}", "distribution"),
        (2, f"extra={{s3:s3://{BUCKET}/x/,distribution:{SHARDED}}}", "distribution"),
        (
            2,
            f"training.source.S3DataSource={{{PREFIX},S3DataDistributionType:{SHARDED}}}",
            "source.S3DataSource.S3DataDistributionType",
        ),
        (1, f"training={{s3:s3://{BUCKET}/shards/,distribution:{SHARDED}}}", None),
        (2, f"training={{s3:s3://{BUCKET}/shards/,distribution:FullyReplicated}}", None),
    ],
)
def test_a_share_of_a_channel_for_each_of_several_hosts_is_refused(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    hosts: int,
    channel: str,
    refused: str | None,
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    launch = [*MINIMAL, f"target.instance_count={hosts}", f"job.channels.{channel}"]
    job = ["data=shards", f"data.root=/opt/ml/input/data/{channel.split('=')[0].split('.')[0]}"]
    assert sagemaker.main(["train", *launch, *job]) == (refused is not None)
    err = capsys.readouterr().err
    assert err.count("\n") == (refused is not None)
    assert f".{refused}={SHARDED}: each of the 2 hosts" in err or not refused
