"""`job.queue` hands the checked request to AWS Batch instead of SageMaker."""

import json

import pytest

from launch.sagemaker.__main__ import main
from tests.launch.conftest import Aws
from tests.launch.minimal_job import MINIMAL

ANSWER = {"jobArn": "arn:aws:batch:x", "jobName": "mine", "jobId": "1234-abcd"}


def test_the_queue_gets_the_dry_run_request(
    aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = f"target.image={aws.pretend_image()}"
    arguments = ["train", *MINIMAL, image, "job.name=mine", "job.queue=night", "job.tags.team=a"]
    arguments.append("job.request.ExperimentConfig={ExperimentName: rates}")
    monkeypatch.setenv("DRY_RUN", "1")
    assert main(arguments) == 0
    shown = json.loads(capsys.readouterr().out)
    monkeypatch.delenv("DRY_RUN")
    aws.answers["POST /v1/submitservicejob"] = [(200, ANSWER)]
    assert main([*arguments, "--wait"]) == 1
    assert "--wait: the job may stay in the queue night" in capsys.readouterr().err
    assert not aws.calls
    assert main(arguments) == 0
    assert "waits in the queue night as AWS Batch job 1234-abcd" in capsys.readouterr().out
    (sent,) = aws.made("POST /v1/submitservicejob")
    assert (sent["jobName"], sent["jobQueue"]) == ("mine", "night")
    assert sent["serviceJobType"] == "SAGEMAKER_TRAINING"
    assert sent["tags"] == {"team": "a"}
    payload = json.loads(sent.pop("serviceRequestPayload"))
    assert sent.pop("clientToken")  # so that a repeated call makes no second job
    assert payload == shown.pop("serviceRequestPayload") and sent == shown
    assert payload["ExperimentConfig"] == {"ExperimentName": "rates"} and "Tags" not in payload
    assert not aws.made("CreateTrainingJob")
