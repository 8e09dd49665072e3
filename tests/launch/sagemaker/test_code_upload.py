"""Your own code goes to S3 once per content, and only for a real launch."""

import pytest

from entry_point.job.own_code import content_hash
from launch.own_code import collect
from launch.sagemaker import __main__ as sagemaker
from tests.launch.conftest import BUCKET, MINIMAL, Aws

LAUNCH = ["train", *MINIMAL, "job.code=true", "job.tags.team=vision"]


def uploads(aws: Aws) -> int:
    return sum(call.operation.startswith("PUT ") for call in aws.calls)


def test_code_is_sent_once_and_the_job_reads_what_was_sent(
    aws_cli: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    code, s3 = collect(), aws_cli.client("s3")
    prefix = f"runs/code/{code.hash}/"
    # An upload that was cut is completed.
    there = {"Bucket": BUCKET, "Key": f"{prefix}project/__init__.py"}
    s3.put_object(**there, Body=code.files["project/__init__.py"])
    aws_cli.calls.clear()
    assert sagemaker.main(LAUNCH) == 0
    assert uploads(aws_cli) == len(code.files) - 1
    assert f"{code.describe()}, in s3://{BUCKET}/{prefix}" in capsys.readouterr().out
    (request,) = aws_cli.made("CreateTrainingJob")
    (channel,) = request["InputDataConfig"]
    assert channel["ChannelName"] == "code" and channel["InputMode"] == "File"
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == f"s3://{BUCKET}/{prefix}"
    assert request["Environment"] == {"OWN_CODE": code.hash}
    tags = {tag["Key"]: tag["Value"] for tag in request["Tags"]}
    assert tags.items() >= {"code": code.hash, "team": "vision"}.items()
    keys = [item["Key"] for item in s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]]
    found = {key: s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}
    assert code.hash == content_hash({key.removeprefix(prefix): found[key] for key in found})
    assert sagemaker.main(LAUNCH) == 0
    assert uploads(aws_cli) == len(code.files) - 1


def test_a_dry_run_and_a_refused_launch_send_no_code(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sagemaker.main([*LAUNCH, "resume_from=s3://not-there/kept"]) == 1
    monkeypatch.setenv("DRY_RUN", "1")
    assert sagemaker.main(LAUNCH) == 0
    assert uploads(aws) == 0
    assert f'"s3://{BUCKET}/runs/code/' in capsys.readouterr().out
