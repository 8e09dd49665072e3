"""`DRY_RUN=1` refuses what AWS would refuse of a request, by the description of its members."""

import pytest

from entry_point.job.program import UserError
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker.checks import input_shape
from tests.launch.conftest import BUCKET
from tests.launch.minimal_job import MINIMAL, checked

PHOTOS = f"job.channels.training.s3=s3://{BUCKET}/photos/"
TYPES = input_shape("CreateTrainingJob").members["ResourceConfig"].members["InstanceType"].enum


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("job.name=bad_name", "job.name=bad_name: must match [a-zA-Z0-9](-*"),
        (f"job.name={'a' * 64}", "must have at most 63 characters, has 64"),
        ("job.role=arn:aws:iam::12:role/x", "job.role=arn:aws:iam::12:role/x: must match arn:aws"),
        ("target.instance_type=ml.m5.99xlarge", "did you mean ml.m5."),
        ("target.instance_type=ml.mm5.xlarge", "did you mean ml.m5.xlarge?"),
        (
            "target.max_runtime_s=3000000",
            "target.max_runtime_s=3000000: Input should be less than or equal to ",
        ),
        (f"job.environment.X={'x' * 513}", "job.environment.X=xxx"),
        ("job.environment={1X: a}", "job.environment.1X: must match [a-zA-Z_]"),
        ("job.tags.team='a#b'", "job.tags.team=a#b: must match"),
        (
            "job.channels.training.source.S3DataSource={S3DataType:S3Prefixx,S3Uri:s3://b/x}",
            "job.channels.training.DataSource.S3DataSource.S3DataType=S3Prefixx: must be one of",
        ),
        (
            "job.request.OutputDataConfig.CompressionType=zip",
            "job.request.OutputDataConfig.CompressionType=zip: must be one of GZIP, NONE; did you",
        ),
        (
            "job.request.ResourceConfig.KeepAlivePeriodInSeconds=99999",
            "job.request.ResourceConfig.KeepAlivePeriodInSeconds=99999: must be at most 21600",
        ),
        (
            "job.request.StoppingCondition.MaxPendingTimeInSeconds=10",
            "StoppingCondition.MaxPendingTimeInSeconds",
        ),
        ("job.network.VpcConfig={Subnets:[a_b],SecurityGroupIds:[sg-1]}", "VpcConfig.Subnets[0]"),
    ],
)
def test_a_member_outside_of_its_limits_is_refused_by_its_setting(override: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        checked(PHOTOS if "training.source" not in override else "trainer.epochs=1", override)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    "override",
    [
        "target.instance_type=ml.m99i.xlarge",
        "target.instance_type=ml.zz9.xlarge",
        "job.request.OutputDataConfig.CompressionType=LZ9999",
    ],
)
def test_a_word_that_is_near_none_is_sent_with_a_warning(
    override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checked(override)
    assert (
        capsys.readouterr().err == f"{override}: unknown to this version of boto3; sent as it is\n"
    )


def test_a_new_instance_type_is_sent_by_job_request(capsys: pytest.CaptureFixture[str]) -> None:
    sent = checked("job.request.ResourceConfig.InstanceType=ml.m5.99xlarge")
    assert sent["ResourceConfig"]["InstanceType"] == "ml.m5.99xlarge"
    assert not capsys.readouterr().err


def test_every_type_of_the_description_passes(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in TYPES[:: len(TYPES) // 10]:
        assert checked(f"target.instance_type={kind}")
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "override",
    ["job.name=bad_name", "target.instance_type=ml.m5.99xlarge", "target.max_runtime_s=999999"],
)
@pytest.mark.parametrize(
    "command",
    [
        ["dataset", "source=s3://b/a", f"output=s3://{BUCKET}/runs/c"],
        ["predict", "s3://b/model.tar.gz", "input=s3://b/a", f"output_dir=s3://{BUCKET}/runs/c"],
    ],
)
def test_processing_jobs_are_checked_alike(
    command: list[str],
    override: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    assert sagemaker.main([*command, *MINIMAL, override]) == 1
    assert capsys.readouterr().err.startswith(f"{override}: ")
