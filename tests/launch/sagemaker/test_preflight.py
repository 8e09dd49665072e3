"""Before a job is paid for, AWS is asked whether the buckets of its results exist."""

from typing import Any

import boto3
import pytest

from launch.sagemaker import __main__ as sagemaker
from tests.launch.conftest import BUCKET, ROLE, Aws


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
        ("resume_from=s3://not-there/c", "resume_from"),
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


def test_an_empty_or_ambiguous_prefix_is_refused(
    aws: Aws, bucket: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for key in ("photos/a/1.jpg", "photos-old/a/1.jpg", "marked/"):
        bucket.put_object(Bucket=BUCKET, Key=key, Body=b"x")
    image = aws.pretend_image()
    for prefix, said in {
        "photo/": "S3 has no object there",
        "marked/": "S3 has no object there",
        "photos": f"also means s3://{BUCKET}/photos-old/; end it in /",
    }.items():
        channel = f"job.channels.training.s3=s3://{BUCKET}/{prefix}"
        line = refused(
            capsys, aws, image, "data=folder", channel, "job.channels.training.mode=File"
        )
        assert line.startswith(f"job.channels.training=s3://{BUCKET}/{prefix}: {said}")
    assert launch(image, "data=folder", f"job.channels.training=s3://{BUCKET}/photos/") == 0


def test_an_empty_prefix_is_nothing_to_resume_from(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, aws, aws.pretend_image(), f"resume_from=s3://{BUCKET}/none/")
    assert line.startswith(f"resume_from=s3://{BUCKET}/none/: S3 has no object there")


def test_checkpoints_outside_of_job_output_are_named(
    aws: Aws, bucket: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.put_object(Bucket=BUCKET, Key="kept/step-1", Body=b"x")
    assert launch(aws.pretend_image(), f"resume_from=s3://{BUCKET}/kept") == 0
    assert f"resume_from=s3://{BUCKET}/kept: outside of job.output=" in capsys.readouterr().err


def test_a_bucket_of_another_region_is_refused(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="elsewhere")
    line = refused(capsys, aws, aws.pretend_image(), "job.output=s3://elsewhere/x")
    assert "the bucket is in us-east-1, must be in the job's region" in line
