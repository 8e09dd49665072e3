"""Before a machine is paid for: what would cost money, an hour or data is refused in one line."""

import pytest

from entry_point.job.program import UserError
from launch.sagemaker.checks import launch_problems
from launch.sagemaker.config import LaunchConfig
from tests.launch.conftest import ACCOUNT, BUCKET, REGION
from tests.launch.minimal_job import built, checked

ECR = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"
CHANNEL = f"job.channels.training=s3://{BUCKET}/data/"


def refusal(*arguments: str) -> list[str]:
    """The lines of the error."""
    with pytest.raises(UserError) as caught:
        checked(*arguments)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        (["job.channels.x=/home/me/photos"], "job.channels.x=/home/me/photos", "make upload"),
        (["resume_from=/tmp/run"], "resume_from=/tmp/run", "name of a job"),
        (
            ["job.request.OutputDataConfig.CompressionType=NONE"],
            "job.request.OutputDataConfig.CompressionType=NONE",
            "model.tar.gz",
        ),
        (
            ["job.channels.x.source.S3DataSource.S3DataType=AugmentedManifestFile"],
            "job.channels.x.source",
            "data=manifest",
        ),
        (["target.image=pytorch:latest"], "target.image=pytorch:latest", "make push"),
        (
            ["target.image=123456789012.dkr.ecr.eusc-de-east-1.amazonaws.eu/ab:1"],
            "target.image",
            "AWS_DEFAULT_REGION=eusc-de-east-1",
        ),
        (
            ["data=folder", "data.root=s3://b/year=2024/"],
            "data.root=s3://b/year=2024/",
            "job.channels.NAME=s3://b/year=2024/ data.root=/opt/ml/input/data/NAME",
        ),
    ],
    ids=lambda value: value[0].split("=", 1)[-1][:40] if isinstance(value, list) else None,
)
def test_what_aws_would_accept_is_refused_by_its_config_key(
    overrides: list[str], key: str, reason: str
) -> None:
    (line,) = refusal(*overrides)
    assert line.startswith(key) and reason in line


@pytest.mark.parametrize("member", ["Colour", "ResourceConfig.InstanceCount"])
def test_what_boto3_would_not_send_is_refused_in_a_dry_run(member: str) -> None:
    (line,) = refusal(f"job.request.{member}=red")
    assert member in line


@pytest.mark.parametrize("kind", ["g6.4xlarge", "g6.4xlarg", "ml.g6.4xlarg", "G6.4XLARGE"])
def test_a_misspelt_type_is_named_before_an_image_for_it_is_advised(kind: str) -> None:
    (line,) = refusal(f"target.instance_type={kind}", f"target.image='{ECR}/ab:cpu-1'")
    assert line.startswith(f"target.instance_type={kind}: ")
    assert "did you mean ml.g6.4xlarge?" in line


REQUEST = "job.request."
SENT = (
    "InputDataConfig=[{{ChannelName:{name},InputMode:{mode},"
    "DataSource:{{S3DataSource:{{S3DataType:S3Prefix,S3Uri:'s3://b/x/'}}}}}}]"
)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["CheckpointConfig.LocalPath=/tmp/ck"],
            "job.request.CheckpointConfig.LocalPath=/tmp/ck: the job writes to /opt/ml/checkpoints",
        ),
        (
            ["TensorBoardOutputConfig.LocalPath=/opt/ml/tb"],
            "job.request.TensorBoardOutputConfig.LocalPath=/opt/ml/tb: the job writes to",
        ),
        (["HyperParameters.optim__lrr='1'"], "optim.lrr"),
        (
            ["HyperParameters={trainer.epochs:'0'}"],
            "trainer.epochs=0: Input should be greater than or equal to 1",
        ),
        (["HyperParameters.data=folder"], "data=folder: data.root is not set"),
        (["HyperParameters.sagemaker_program=train.py"], "hyperparameter sagemaker_program"),
        (
            ["HyperParameters.hydra_overrides_000='[]'"],
            "hydra_overrides_000=[]: retired: use a hyperparameter for each override",
        ),
        (
            [SENT.format(name="other", mode="File"), "data=folder"],
            "data=folder: data.root is not set and there is no channel training; add "
            "job.channels.training=s3://bucket/prefix/; job.request.InputDataConfig replaces",
        ),
        (
            [SENT.format(name="training", mode="Pipe"), "data=folder"],
            "job.request.InputDataConfig.training.InputMode=Pipe: the job reads files",
        ),
        (
            ["AlgorithmSpecification.ContainerArguments=[serve]"],
            "job.request.AlgorithmSpecification.ContainerArguments=['serve']: must begin with",
        ),
        (
            ["AlgorithmSpecification.ContainerArguments=[train,'trainer.epochs=0']"],
            "trainer.epochs=0: Input should be greater than or equal to 1",
        ),
        (
            ["ResourceConfig.InstanceType=g6.xlarge"],
            "job.request.ResourceConfig.InstanceType=g6.xlarge: must be a type of SageMaker's",
        ),
        (["ResourceConfig.InstanceCount=3"], "trainer.batch_size"),
        (
            [f"AlgorithmSpecification.TrainingImage='{ECR.replace(REGION, 'us-east-1')}/ab:1'"],
            "job.request.AlgorithmSpecification.TrainingImage=",
        ),
        (["Environment.ML_ROOT=/tmp"], "job.environment.ML_ROOT=/tmp: SageMaker reads and fills"),
    ],
    ids=lambda value: value[0][:50] if isinstance(value, list) else None,
)
def test_the_finished_request_is_read_as_the_job_reads_it(overrides: list[str], line: str) -> None:
    given = [each if each.startswith("data=") else REQUEST + each for each in overrides]
    found = refusal(*given)
    assert [each for each in found if each.startswith(line)], found


@pytest.mark.parametrize(
    "overrides",
    [
        ["job.request.CheckpointConfig.LocalPath=/opt/ml/checkpoints/"],
        ["job.request.CheckpointConfig=null"],
        ["job.request.HyperParameters={trainer.epochs:'2'}"],
        [
            "data=folder",
            REQUEST + SENT.format(name="training", mode="File"),
        ],
        ["job.request.AlgorithmSpecification.ContainerArguments=[train,'trainer.epochs=2']"],
        ["job.environment.ML_ROOT=/opt/ml", "job.environment.OWN=1"],
    ],
)
def test_a_request_that_the_job_can_use_is_sent(overrides: list[str]) -> None:
    assert checked(*overrides)["TrainingJobName"]


def test_all_problems_are_reported_at_once() -> None:
    lines = refusal(
        f"target.image='{ECR}/ab:gpu-1'",
        "data=folder",
        "trainer.batch_size=33",
        "target.instance_count=2",
    )
    assert len(lines) == 3


def test_image_region_is_not_checked_while_the_job_region_is_unknown() -> None:
    _, config = built(f"target.image='{ECR.replace(REGION, 'us-east-1')}/ab:1'")
    assert list(launch_problems(config, None)) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["target=gpu"],
        ["target=gpu_spot"],
        ["target=multi_gpu"],
        [
            f"target.image={ECR}/a/b:cpu-1",
            CHANNEL,
            "job.network.VpcConfig={Subnets:[subnet-1],SecurityGroupIds:[sg-1]}",
        ],
        [f"target.image={ECR}/gpu-team/b"],
    ],
)
def test_valid_overrides_pass(overrides: list[str]) -> None:
    assert checked(*overrides)["TrainingJobName"]


def test_config_defaults_equal_those_of_the_yaml() -> None:
    _, config = built(minimal=[])
    assert config == LaunchConfig()
