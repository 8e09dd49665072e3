"""Before a machine is paid for: what would cost money, an hour or data is refused in one line."""

import json
import re
import subprocess
import sys

import pytest

from entry_point.config.task_config import MOST_OWN_METRICS
from entry_point.job.known_tasks import LOSS, TASKS
from entry_point.job.program import UserError
from launch import setup_aws
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker.checks import problems
from launch.sagemaker.config import LaunchConfig, load_launch_config
from tests.launch.conftest import ACCOUNT, BUCKET, REGION, ROOT
from tests.launch.minimal_job import MINIMAL, planned, refused, sent

ECR = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"
CHANNEL = f"job.channels.training=s3://{BUCKET}/data/"
DATA = "/opt/ml/input/data"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ("job.channels.x=/home/me/photos", "job.channels.x=/home/me/photos: must .*make upload"),
        ("target.image=pytorch:latest", "target.image=pytorch:latest: .*make push"),
        (
            "target.image=123456789012.dkr.ecr.eusc-de-east-1.amazonaws.eu/ab:1",
            "target.image=.*AWS_DEFAULT_REGION=eusc-de-east-1",
        ),
        (
            f"target.instance_type=G6.4XLARGE target.image={ECR}/ab:cpu-1",
            "target.instance_type=G6.4XLARGE: .*did you mean ml.g6.4xlarge?",
        ),
        ("data=folder data.root=photos", "data.root=photos: a path on this machine"),
        ("data=folder data.root=/", "data.root=/: a path on this machine"),
        ("data=folder data.root=/home/me/photos", "data.root=/home/me/photos: a path on this"),
        (f"data=folder data.root={ROOT}", f"data.root={ROOT}: a path on this machine"),
        (
            "data=folder data.root=s3://b/year=2024/",
            "data.root=s3://b/year=2024/: .*job.channels.NAME=s3://b/year=2024/ "
            f"data.root={DATA}/NAME",
        ),
        (f"data=folder data.root={DATA}/x", f"data.root={DATA}/x: there is no channel x"),
        (f"{CHANNEL} data=manifest data.images=photos", "data.images=photos: a path on this"),
        (
            f"data=shards data.root=/baked data.access=stream data.index_root={DATA}/i",
            f"data.index_root={DATA}/i: there is no channel i; add job.channels.i=s3://",
        ),
        (
            "experiment=finetune data.root=/baked",
            "model.weights=pretrained: there is no channel pretrained; after `make weights "
            "ARGS=resnet50` and `make upload` add job.channels.pretrained=s3://",
        ),
        ("model.weights=resnet18.pth", "model.weights=resnet18.pth: a path on this machine"),
        (f"{CHANNEL} model.weights=training/a.pth", "model.weights=training/a.pth: a path on"),
        ("model.weights=other", "model.weights=other: there is no channel other"),
        (
            "trainer.batch_size=100 target.instance_count=3",
            "trainer.batch_size=100: must be a multiple of the 3 ranks that share it on 3 hosts",
        ),
        (
            "trainer.batch_size=64 optim.accumulate=8 trainer.nproc_per_host=8 "
            "target.instance_count=3",
            "trainer.batch_size=64: must be a multiple of 192, ranks=24 x optim.accumulate=8 on 3",
        ),
    ],
    ids=lambda value: value[:60],
)
def test_what_would_cost_money_is_refused_by_its_key(overrides: str, line: str) -> None:
    (found,) = refused(*overrides.split())
    assert re.match(line.replace("?", r"\?"), found), found


@pytest.mark.parametrize(
    "overrides",
    [
        "target=gpu",
        "target=gpu_spot",
        "target=multi_gpu",
        f"target.image={ECR}/a/b:cpu-1 {CHANNEL}",
        f"target.image={ECR}/gpu-team/b",
        "target.instance_type=ml.g99.xlarge trainer.batch_size=7",
        "trainer.batch_size=96 target.instance_count=3",
        f"data=folder {CHANNEL}",
        f"data=folder {CHANNEL} data.root={DATA}/training/photos",
        "data=folder data.root=/baked model.weights=/baked/resnet18.pth",
        "data=folder data.root=/homeless",
        f"data=folder data.root=/{'x' * 300}",
        f"{CHANNEL} model.weights=training/resnet18 model.name=my_models.net",
        f"job.channels.pretrained=s3://{BUCKET}/p/ model.weights=pretrained",
        "job.environment.ML_ROOT=/opt/ml job.environment.OWN=1",
        "job.request.CheckpointConfig.LocalPath=/opt/ml/checkpoints/",
        "job.request.CheckpointConfig=null",
        "job.request.HyperParameters={trainer.epochs:'2'}",
        "job.request.AlgorithmSpecification.ContainerArguments=[train,'trainer.epochs=2']",
    ],
)
def test_a_job_that_can_run_is_sent(overrides: str) -> None:
    assert sent(*overrides.split())["TrainingJobName"]


REQUEST = "job.request."
SENT = (
    "InputDataConfig=[{{ChannelName:{name},InputMode:{mode},"
    "DataSource:{{S3DataSource:{{S3DataType:S3Prefix,S3Uri:'s3://b/x/'}}}}}}]"
)


@pytest.mark.parametrize(
    ("member", "line"),
    [
        ("CheckpointConfig.LocalPath=/tmp/ck", "job.request.CheckpointConfig.LocalPath=/tmp/ck: "),
        (
            "TensorBoardOutputConfig.LocalPath=/opt/ml/tb",
            "job.request.TensorBoardOutputConfig.LocalPath=/opt/ml/tb: the job writes to",
        ),
        (
            "OutputDataConfig.CompressionType=NONE",
            "job.request.OutputDataConfig.CompressionType=NONE: .*model.tar.gz",
        ),
        ("HyperParameters.data=folder", "data=folder: data.root is not set"),
        (
            SENT.format(name="other", mode="File"),
            "data=folder: .* no channel training; add job.channels.training=s3://bucket/prefix/; "
            "job.request.InputDataConfig replaces",
        ),
        (
            SENT.format(name="training", mode="Pipe"),
            "job.request.InputDataConfig.training.InputMode=Pipe: the job reads files",
        ),
        (
            "AlgorithmSpecification.ContainerArguments=[serve]",
            r"job.request.AlgorithmSpecification.ContainerArguments=\['serve'\]: must begin with",
        ),
        (
            "ResourceConfig.InstanceType=g6.xlarge",
            "job.request.ResourceConfig.InstanceType=g6.xlarge: must be a type of SageMaker's",
        ),
        ("ResourceConfig.InstanceCount=3", "trainer.batch_size"),
        (
            f"AlgorithmSpecification.TrainingImage='{ECR.replace(REGION, 'us-east-1')}/ab:1'",
            "job.request.AlgorithmSpecification.TrainingImage=",
        ),
        ("Environment.ML_ROOT=/tmp", "job.environment.ML_ROOT=/tmp: SageMaker reads and fills"),
    ],
    ids=lambda value: value[:50],
)
def test_the_finished_request_is_read_as_the_job_reads_it(member: str, line: str) -> None:
    found = refused("data=folder", REQUEST + member)
    assert [each for each in found if re.match(line, each)], found


@pytest.mark.parametrize(
    ("member", "line"),
    [
        ("HyperParameters.optim__lrr='1'", "optim.lrr"),
        ("HyperParameters={trainer.epochs:'0'}", "trainer.epochs=0: Input should be greater"),
        ("HyperParameters.sagemaker_program=train.py", "hyperparameter sagemaker_program"),
        (
            "HyperParameters.hydra_overrides_000='[]'",
            "hydra_overrides_000=[]: retired: use a hyperparameter for each override",
        ),
        (
            "AlgorithmSpecification.ContainerArguments=[train,'trainer.epochs=0']",
            "trainer.epochs=0: Input should be greater than or equal to 1",
        ),
        ("Colour=red", 'Unknown parameter in input: "Colour"'),
        ("ResourceConfig.InstanceCount=red", "Invalid type for parameter ResourceConfig.Inst"),
    ],
)
def test_what_cannot_be_planned_is_one_line(member: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        planned(REQUEST + member)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


SHARDED = "ShardedByS3Key"
PREFIX = f"S3DataType:S3Prefix,S3Uri:s3://{BUCKET}/shards/"


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize(
    "channel",
    [
        f"training={{s3:s3://{BUCKET}/shards/,distribution:{SHARDED}}}",
        f"extra={{s3:s3://{BUCKET}/x/,distribution:{SHARDED}}}",
        f"training.source.S3DataSource={{{PREFIX},S3DataDistributionType:{SHARDED}}}",
    ],
)
def test_a_share_of_a_channel_for_each_of_several_hosts_is_refused(
    channel: str, hosts: int
) -> None:
    launch = [f"target.instance_count={hosts}", f"job.channels.{channel}"]
    name = re.split(r"[.=]", channel)[0]
    found = refused(*launch, "data=shards", f"data.root={DATA}/{name}")
    line = f"job.channels.{name}: with {SHARDED}, each of the 2 hosts"
    assert [each.startswith(line) for each in found] == [True] * (hosts - 1)


def test_all_problems_are_reported_at_once() -> None:
    image = f"target.image='{ECR}/ab:gpu-1'"
    found = refused(
        image, "job.role=null", "data=folder", "trainer.batch_size=33", "target.instance_count=2"
    )
    assert len(found) == 4


def test_image_region_is_not_checked_while_the_job_region_is_unknown() -> None:
    image = f"target.image='{ECR.replace(REGION, 'us-east-1')}/ab:1'"
    assert list(problems(planned(image), None)) == []


def test_config_defaults_equal_those_of_the_yaml() -> None:
    assert load_launch_config([])[0] == LaunchConfig()


@pytest.mark.parametrize("task", TASKS)
def test_a_job_sends_the_expressions_of_its_own_task(task: str) -> None:
    metrics = sent(f"task.name={task}")["AlgorithmSpecification"]["MetricDefinitions"]
    found = {each["Name"] for each in metrics if each["Name"].startswith("validation:")}
    assert found == {f"validation:{metric.name}" for metric in (LOSS, *TASKS[task].metrics)}
    assert len(metrics) <= 25


def test_an_own_task_has_the_expressions_of_all_tasks_and_its_own() -> None:
    own = [f"own_{number}" for number in range(MOST_OWN_METRICS)]
    request = sent("task.name=project.tasks.Own", f"task.metrics=[{','.join(own)}]")
    names = [each["Name"] for each in request["AlgorithmSpecification"]["MetricDefinitions"]]
    assert {"validation:own_0", "validation:accuracy", "validation:miou"} <= {*names}
    assert len(names) <= 40


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


COUNTED = """
import collections, entry_point.config.compose as compose, launch.sagemaker.plan as plan
from launch.sagemaker.__main__ import main
counts = collections.Counter()
def counted(module, name):
    usual = getattr(module, name)
    def call(*given, **named):
        counts[name] += 1
        return usual(*given, **named)
    setattr(module, name, call)
counted(compose, "compose")
counted(plan, "build")
import sys
assert main(sys.argv[1:]) == 0
loaded = {"torch", "numpy", "sagemaker", "boto3"} & set(sys.modules)
assert not loaded, loaded
print(dict(counts), file=sys.stderr)
"""


def test_a_dry_run_composes_each_config_once_and_needs_no_torch_no_sdk_and_no_credentials() -> None:
    arguments = ["train", *MINIMAL, CHANNEL, "job.channels.training.mode=File", "data=folder"]
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *arguments],
        cwd=ROOT,
        env={"DRY_RUN": "1", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    # The launch's config and the job's.
    assert done.stderr == "{'compose': 2, 'build': 1}\n"
    assert json.loads(done.stdout)["HyperParameters"] == {"data": "folder"}
