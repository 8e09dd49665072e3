"""Before a job is paid for, AWS is asked whether its role, buckets and image exist."""

import json
from typing import Any

import pytest

from launch import sagemaker
from tests.launch.conftest import BUCKET, DROPPED, MANIFEST, REPOSITORY, ROLE, Aws

pytestmark = pytest.mark.usefixtures("without_job_checks")
NO_ACCESS = (
    403,
    "<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>",
)


def launch(image: str, *more: str) -> int:
    job = [f"target.image={image}", f"job.role={ROLE}", f"job.output=s3://{BUCKET}/x"]
    return sagemaker.main(["train", *job, *more])


def refused(capsys: pytest.CaptureFixture[str], aws: Aws, *arguments: str) -> str:
    assert launch(*arguments) == 1
    assert not aws.made("CreateTrainingJob")
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_role_that_does_not_exist_is_told_before_the_launch(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    other = ROLE.replace("training", "trainnig")
    line = refused(capsys, aws, aws.pretend_image(), f"job.role={other}")
    assert line.startswith(f"job.role={other}: no such role in this account")


def test_a_role_that_sagemaker_may_not_assume_is_told_before_the_launch(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    trust = '{"Principal": {"Service": "lambda.amazonaws.com"}}'
    aws.client("iam").create_role(RoleName="other", AssumeRolePolicyDocument=trust)
    line = refused(
        capsys, aws, aws.pretend_image(), f"job.role={ROLE.replace('training', 'other')}"
    )
    assert "its trust policy must name sagemaker.amazonaws.com" in line


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("job.output=s3://not-there/x", "job.output"),
        ("job.checkpoints=s3://not-there/c", "job.checkpoints"),
        ("job.channels.training=s3://not-there/data/", "job.channels.training.s3"),
    ],
)
def test_a_bucket_that_does_not_exist_is_told_before_the_launch(
    aws: Aws, capsys: pytest.CaptureFixture[str], setting: str, key: str
) -> None:
    line = refused(capsys, aws, aws.pretend_image(), setting)
    assert line == f"{key}={setting.partition('=')[2]}: there is no bucket not-there"


def test_what_the_caller_may_not_ask_does_not_stop_the_launch(aws: Aws) -> None:
    aws.answers["POST /"] = [NO_ACCESS]
    aws.answers["HEAD /not-mine"] = [(403, "")]
    assert launch(aws.pretend_image(), "job.channels.training=s3://not-mine/data/") == 0


def test_a_network_without_a_way_to_iam_does_not_stop_the_launch(aws: Aws) -> None:
    aws.answers["POST /"] = [DROPPED]
    assert launch(aws.pretend_image()) == 0
    assert sum(call.operation == "POST /" for call in aws.calls) == 1, "asked once"


@pytest.mark.parametrize(
    ("tags", "is_refused"), [(["cpu-1"], True), (["cpu-1", "gpu-1"], False), (["latest"], False)]
)
def test_the_tag_of_a_digest_tells_the_device_of_the_image(
    aws: Aws, capsys: pytest.CaptureFixture[str], tags: list[str], is_refused: bool
) -> None:
    digest = _push(aws, tags)
    image = f"{aws.pretend_image().partition(':1')[0]}@{digest}"
    aws.answers.pop("DescribeImages")
    if is_refused:
        line = refused(capsys, aws, image, "target=gpu")
        assert "its tag in the registry is cpu-1, but target.device=gpu" in line
    else:
        assert launch(image, "target=gpu") == 0


def _push(aws: Aws, tags: list[str]) -> str:
    ecr: Any = aws.client("ecr")
    ecr.create_repository(repositoryName=REPOSITORY)
    for tag in tags:
        pushed = ecr.put_image(
            repositoryName=REPOSITORY, imageManifest=json.dumps(MANIFEST), imageTag=tag
        )
    return str(pushed["image"]["imageId"]["imageDigest"])
