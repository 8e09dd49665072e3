"""Before a job is paid for, AWS is asked whether its image and the buckets of its results exist."""

import json
from typing import Any

import pytest

from launch.sagemaker import __main__ as sagemaker
from tests.launch.conftest import BUCKET, MANIFEST, REPOSITORY, ROLE, Aws


def launch(image: str, *more: str) -> int:
    job = [f"target.image={image}", f"job.role={ROLE}", f"job.output=s3://{BUCKET}/x"]
    return sagemaker.main(["train", *job, *more])


def refused(capsys: pytest.CaptureFixture[str], aws: Aws, *arguments: str) -> str:
    assert launch(*arguments) == 1
    assert not aws.made("CreateTrainingJob")
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("job.output=s3://not-there/x", "job.output"),
        ("job.checkpoints=s3://not-there/c", "job.checkpoints"),
    ],
)
def test_a_bucket_that_does_not_exist_is_told_before_the_launch(
    aws: Aws, capsys: pytest.CaptureFixture[str], setting: str, key: str
) -> None:
    line = refused(capsys, aws, aws.pretend_image(), setting)
    assert line == f"{key}={setting.partition('=')[2]}: there is no bucket not-there"


def test_what_the_caller_may_not_ask_does_not_stop_the_launch(aws: Aws) -> None:
    aws.answers["HEAD /not-mine"] = [(403, "")]
    assert launch(aws.pretend_image(), "job.output=s3://not-mine/runs") == 0


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
