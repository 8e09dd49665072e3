"""Before a job is paid for, S3 is asked for its inputs and the buckets of its results."""

import shlex
from pathlib import Path
from typing import Any

import boto3
import pytest

from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker import checks
from tests.launch.conftest import BUCKET, MINIMAL, ROLE, Aws, Terminal

LAUNCH = ("train", *MINIMAL)


@pytest.mark.parametrize("key", ["job.output", "resume_from"])
def test_a_bucket_that_does_not_exist_is_told_before_the_launch(
    aws: Aws, terminal: Terminal, key: str
) -> None:
    line = terminal.refusal(sagemaker.main, *LAUNCH, f"{key}=s3://not-there/x")
    assert line == f"{key}=s3://not-there/x: there is no bucket not-there"
    assert not aws.made("CreateTrainingJob")


def test_what_the_caller_may_not_ask_does_not_stop_the_launch(aws: Aws, terminal: Terminal) -> None:
    aws.answers["HEAD /not-mine"] = [(403, "")]
    terminal.out(sagemaker.main, *LAUNCH, "job.output=s3://not-mine/runs")


def test_an_empty_or_ambiguous_prefix_is_refused(aws: Aws, bucket: Any, terminal: Terminal) -> None:
    for key in ("photos/a/1.jpg", "photos-old/a/1.jpg", "marked/"):
        bucket.put_object(Bucket=BUCKET, Key=key, Body=b"x")
    key = "job.channels.training"
    launch = (*LAUNCH, "data=folder", f"{key}.mode=File")
    for prefix, said in {
        "photo/": f"S3 has no object there; `aws s3 ls s3://{BUCKET}/` shows what it has",
        "marked/": "S3 has no object there",
        "photos/a/b/": f"S3 has no object there; `aws s3 ls s3://{BUCKET}/photos/a/` shows",
        "photos": f"also means s3://{BUCKET}/photos-old/; end it in /",
    }.items():
        line = terminal.refusal(sagemaker.main, *launch, f"{key}=s3://{BUCKET}/{prefix}")
        assert line.startswith(f"{key}=s3://{BUCKET}/{prefix}: {said}")
    assert not aws.made("CreateTrainingJob")
    terminal.out(sagemaker.main, *launch, f"{key}=s3://{BUCKET}/photos/")


def test_what_is_advised_of_a_prefix_with_a_blank_can_be_typed(
    bucket: Any, terminal: Terminal
) -> None:
    for key in ("my photos/a/1.jpg", "my photos-old/a/1.jpg"):
        bucket.put_object(Bucket=BUCKET, Key=key, Body=b"x")
    key = "job.channels.training"
    launch = (*LAUNCH, "data=folder", f"{key}.mode=File")
    line = terminal.refusal(sagemaker.main, *launch, f"{key}=s3://{BUCKET}/my photos/b/")
    assert f"`aws s3 ls 's3://{BUCKET}/my photos/'` shows" in line
    line = terminal.refusal(sagemaker.main, *launch, f"{key}=s3://{BUCKET}/my photos")
    terminal.out(sagemaker.main, *launch, *shlex.split(line.partition("end it in /: ")[2]))


def test_checkpoints_outside_of_job_output_are_named(
    bucket: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.put_object(Bucket=BUCKET, Key="kept/step-1", Body=b"x")
    assert sagemaker.main([*LAUNCH, f"resume_from=s3://{BUCKET}/kept"]) == 0
    assert f"resume_from=s3://{BUCKET}/kept: outside of s3://" in capsys.readouterr().err


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize(
    ("given", "is_told"),
    [
        ("job.output=s3://{}/runs/team", False),
        ("job.output=s3://{}/runs-2/", True),
        ("job.output=s3://{}/runs-2 job.role=arn:aws:iam::123456789012:role/mine", False),
    ],
)
def test_a_job_output_to_which_the_role_of_setup_aws_may_not_write_is_named(
    given: str,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.yaml").write_text(f"job: {{role: {ROLE}, output: s3://{BUCKET}/runs}}")
    monkeypatch.setattr(checks, "MINE", tmp_path / "mine.yaml")
    assert sagemaker.main([*LAUNCH, *given.format(BUCKET).split()]) == 0
    line = f"job.output=s3://{BUCKET}/runs-2: outside of s3://{BUCKET}/runs; the role of `make"
    assert capsys.readouterr().err.startswith(line) == is_told


@pytest.mark.usefixtures("aws")
def test_a_bucket_of_another_region_is_refused(terminal: Terminal) -> None:
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="elsewhere")
    line = terminal.refusal(sagemaker.main, *LAUNCH, "job.output=s3://elsewhere/x")
    assert "the bucket is in us-east-1, must be in the job's region" in line
