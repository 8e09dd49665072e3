"""Before a job is paid for, AWS is asked whether the buckets of its results exist."""

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
