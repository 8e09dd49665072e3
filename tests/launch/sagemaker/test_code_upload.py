"""Your own code goes to S3 once per content, and only for a real launch."""

import pytest

from launch import own_code
from launch.sagemaker import __main__ as sagemaker
from tests.launch.conftest import BUCKET, ROLE, Aws


def launch(image: str, *more: str) -> int:
    job = [f"target.image={image}", f"job.role={ROLE}", f"job.output=s3://{BUCKET}/runs"]
    return sagemaker.main(["train", *job, "job.code=true", *more])


def uploads(aws: Aws) -> int:
    return sum(call.operation.startswith("PUT ") for call in aws.calls)


def test_code_is_sent_once_and_the_job_reads_what_was_sent(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    image, code = aws.pretend_image(), own_code.collect()
    assert launch(image) == 0
    assert uploads(aws) == len(code.files)
    assert f"sent {len(code.files)} of them to" in capsys.readouterr().out
    (request,) = aws.made("CreateTrainingJob")
    (channel,) = request["InputDataConfig"]
    prefix = channel["DataSource"]["S3DataSource"]["S3Uri"].removeprefix(f"s3://{BUCKET}/")
    s3 = aws.client("s3")
    found = s3.get_object(Bucket=BUCKET, Key=f"{prefix}project/__init__.py")["Body"].read()
    assert found == code.files["project/__init__.py"]
    assert launch(image) == 0
    assert uploads(aws) == len(code.files)
    assert f"{code.describe()}, already in s3://{BUCKET}/{prefix}" in capsys.readouterr().out


def test_an_upload_that_was_cut_is_completed(aws: Aws) -> None:
    image = aws.pretend_image()
    code = own_code.collect()
    key = f"runs/code/{code.hash}/project/__init__.py"
    aws.client("s3").put_object(Bucket=BUCKET, Key=key, Body=code.files["project/__init__.py"])
    aws.calls.clear()
    assert launch(image) == 0
    assert uploads(aws) == len(code.files) - 1


def test_a_dry_run_and_a_refused_launch_send_no_code(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = aws.pretend_image()
    assert launch(image, "resume_from=s3://not-there/kept") == 1
    monkeypatch.setenv("DRY_RUN", "1")
    assert launch(image) == 0
    assert uploads(aws) == 0
    assert f'"s3://{BUCKET}/runs/code/' in capsys.readouterr().out
