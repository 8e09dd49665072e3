"""A tuning job among the other jobs: its state, the table of its trials, stopping it."""

from typing import Any

import pytest

from launch.sagemaker.__main__ import main
from launch.sagemaker.aws import open_session
from launch.sagemaker.jobs import TUNING, Job, follow
from tests.launch.conftest import BUCKET, ROLE, Aws

NAME = "rates"


def trial(number: int, state: str, value: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "TrainingJobName": f"{NAME}-00{number}-0123abcd",
        "TrainingJobArn": "arn:aws:sagemaker:eu-west-1:123456789012:training-job/x",
        "CreationTime": 1.7e9,
        "TrainingJobStatus": state,
        "TunedHyperParameters": {"optim.lr": f"0.{number}", "model": "resnet18"},
    }
    if value is not None:
        metric = {"Type": "Maximize", "MetricName": "validation:accuracy", "Value": value}
        found |= {
            "FinalHyperParameterTuningJobObjectiveMetric": metric,
            "ObjectiveStatus": "Succeeded",
        }
    return found


@pytest.fixture
def tuned(aws: Aws) -> Aws:
    """An account with a tuning job of three trials."""
    definition = {
        "AlgorithmSpecification": {"TrainingImage": "i", "TrainingInputMode": "File"},
        "RoleArn": ROLE,
        "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/runs"},
        "ResourceConfig": {"InstanceType": "ml.c7i.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
    }
    limits = {"MaxNumberOfTrainingJobs": 3, "MaxParallelTrainingJobs": 1}
    aws.client("sagemaker").create_hyper_parameter_tuning_job(
        HyperParameterTuningJobName=NAME,
        HyperParameterTuningJobConfig={"Strategy": "Grid", "ResourceLimits": limits},
        TrainingJobDefinition=definition,
    )
    first = {"TrainingJobSummaries": [trial(1, "Completed", 0.8125)], "NextToken": "more"}
    rest = {"TrainingJobSummaries": [trial(2, "Failed", None), trial(3, "Completed", 0.9)]}
    aws.answers["ListTrainingJobsForHyperParameterTuningJob"] = [(200, first), (200, rest)]
    return aws


def test_status_of_a_tuning_job_is_a_table_with_the_best_trial_first(
    tuned: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", NAME]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{NAME}: ")
    assert [line.split() for line in lines[-3:]] == [
        ["0.9", "Completed", f"{NAME}-003-0123abcd", "model=resnet18", "optim.lr=0.3"],
        ["0.8125", "Completed", f"{NAME}-001-0123abcd", "model=resnet18", "optim.lr=0.1"],
        ["-", "Failed", f"{NAME}-002-0123abcd", "model=resnet18", "optim.lr=0.2"],
    ]
    assert tuned.made("ListTrainingJobsForHyperParameterTuningJob")[1]["NextToken"] == "more"


def test_the_list_of_jobs_has_tuning_jobs(tuned: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    assert NAME in capsys.readouterr().out
    assert tuned.made("ListHyperParameterTuningJobs")


@pytest.mark.usefixtures("tuned")
def test_a_tuning_job_is_not_downloaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["download", NAME]) == 1
    assert f"{NAME}: not a training job; `make sagemaker" in capsys.readouterr().err


def test_stop_ends_a_tuning_job_with_its_trials(
    tuned: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned.answers["StopHyperParameterTuningJob"] = [(200, {})]  # moto has none
    described = {"HyperParameterTuningJobName": NAME, "HyperParameterTuningJobStatus": "InProgress"}
    ended = {**described, "HyperParameterTuningJobStatus": "Stopped"}
    tuned.answers["DescribeHyperParameterTuningJob"] = [(200, described), (200, ended)]
    assert main(["stop", NAME]) == 0
    assert f"{NAME} is stopping: " in capsys.readouterr().out
    assert main(["stop", NAME]) == 0
    assert f"{NAME} has already ended: Stopped" in capsys.readouterr().out
    assert tuned.made("StopHyperParameterTuningJob") == [{"HyperParameterTuningJobName": NAME}]


@pytest.mark.usefixtures("tuned")
def test_waiting_for_a_tuning_job_ends_with_its_trials(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(open_session(), NAME, TUNING)
    assert follow(job, interval_s=0) == "Completed"
    assert "0.9         Completed   rates-003-0123abcd" in capsys.readouterr().out
