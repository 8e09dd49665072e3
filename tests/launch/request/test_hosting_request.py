"""The requests of endpoints and batch transforms, without AWS."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch import deploy
from launch.sagemaker.checks import refusals

ROOT = Path(__file__).resolve().parents[3]
ROLE = "arn:aws:iam::123456789012:role/training"
IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/training"
KNOWN = [f"job.role={ROLE}", "job.output=s3://bucket/runs/", f"target.image={IMAGE}:1"]
S3 = ["input=s3://bucket/in", "output=s3://bucket/out"]


@pytest.fixture(autouse=True)
def _dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRY_RUN", "1")


def planned(capsys: pytest.CaptureFixture[str], command: str, *arguments: str) -> dict[str, Any]:
    """The requests that a dry run prints, valid as far as botocore describes them."""
    assert deploy.main([command, "the-job", *KNOWN, *arguments]) == 0
    requests: dict[str, Any] = json.loads(capsys.readouterr().out)
    for operation, request in requests.items():
        assert not refusals(request, operation)
    return requests


def refusal(capsys: pytest.CaptureFixture[str], command: str, *arguments: str) -> list[str]:
    assert deploy.main([command, *arguments]) == 1
    return capsys.readouterr().err.splitlines()


def test_an_endpoint_serves_the_image_and_the_model_of_the_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    requests = planned(capsys, "deploy", "environment.SERVE=1", "job.tags.team=vision")
    assert list(requests) == ["CreateModel", "CreateEndpointConfig", "CreateEndpoint"]
    model, config, endpoint = requests.values()
    assert model["PrimaryContainer"] == {
        "Image": f"{IMAGE}:1",
        "ModelDataUrl": "s3://bucket/runs/the-job/output/model.tar.gz",
        "Environment": {"SERVE": "1"},
    }
    assert model["ExecutionRoleArn"] == ROLE
    (variant,) = config["ProductionVariants"]
    assert variant["ModelName"] == model["ModelName"]
    assert (variant["InstanceType"], variant["InitialInstanceCount"]) == ("ml.c7i.xlarge", 1)
    assert endpoint["EndpointName"] == "the-job"
    assert endpoint["EndpointConfigName"] == config["EndpointConfigName"]
    assert all(r["Tags"] == [{"Key": "team", "Value": "vision"}] for r in requests.values())


def test_a_gpu_endpoint_has_the_system_image_with_the_newest_driver(
    capsys: pytest.CaptureFixture[str],
) -> None:
    requests = planned(capsys, "deploy", "target=gpu")
    (variant,) = requests["CreateEndpointConfig"]["ProductionVariants"]
    assert variant["InstanceType"].startswith("ml.g")
    assert variant["InferenceAmiVersion"] == "al2023-ami-sagemaker-inference-gpu-4-1"


def test_a_serverless_endpoint_has_memory_instead_of_machines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    requests = planned(capsys, "deploy", "serverless=true", "memory_mb=2048")
    (variant,) = requests["CreateEndpointConfig"]["ProductionVariants"]
    assert variant.pop("ServerlessConfig") == {"MemorySizeInMB": 2048, "MaxConcurrency": 10}
    assert set(variant) == {"VariantName", "ModelName"}


def test_an_asynchronous_endpoint_names_where_answers_go(
    capsys: pytest.CaptureFixture[str],
) -> None:
    requests = planned(capsys, "deploy", "async=s3://bucket/answers/")
    output = requests["CreateEndpointConfig"]["AsyncInferenceConfig"]["OutputConfig"]
    assert output == {"S3OutputPath": "s3://bucket/answers"}


def test_an_asynchronous_endpoint_takes_large_bodies_unless_told_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def overrides(*arguments: str) -> str:
        requests = planned(capsys, "deploy", "async=s3://bucket/answers", *arguments)
        container = requests["CreateModel"]["PrimaryContainer"]
        return str(container["Environment"]["SERVE_OVERRIDES"])

    assert "serve.max_payload_mb=1024" in overrides()
    assert overrides("environment.SERVE_OVERRIDES=serve.workers") == "serve.workers"


def test_a_vpc_and_isolation_of_the_job_hold_for_its_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    network = [
        "job.subnets=[subnet-1]",
        "job.security_groups=[sg-1]",
        "job.network_isolation=true",
    ]
    model = planned(capsys, "deploy", *network)["CreateModel"]
    assert model["VpcConfig"] == {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
    assert model["EnableNetworkIsolation"] is True


def test_a_transform_sends_one_image_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    requests = planned(capsys, "transform", *S3, "name=answers", "max_concurrent=4")
    assert list(requests) == ["CreateModel", "CreateTransformJob"]
    transform = requests["CreateTransformJob"]
    assert transform["TransformJobName"] == requests["CreateModel"]["ModelName"] == "answers"
    assert (transform["BatchStrategy"], transform["MaxConcurrentTransforms"]) == ("SingleRecord", 4)
    assert transform["TransformInput"]["ContentType"] == "application/x-image"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["instance_type=ml.g6.xlarge"], "instance_type=ml.g6.xlarge: must be a CPU type"),
        (["instance_count=0"], "InitialInstanceCount, value: 0, valid min value: 1"),
        (["startup_timeout_s=5"], "TimeoutInSeconds, value: 5, valid min value: 60"),
        (["async=/tmp"], "async=/tmp: must be s3://bucket/prefix"),
        (["serverless=true", "memory_mb=1500"], "memory_mb=1500: must be a multiple of 1024"),
        (["serverless=true", "target=gpu"], "serverless=true: has no GPUs"),
        (["serverless=true", "instance_count=2"], "instance_count=2: not available with"),
        (["serverless=true", "async=s3://b/x"], "async=s3://b/x: not available with"),
        (["serverless=true", "job.network_isolation=true"], "serverless=true: not available in a"),
        (["target.image=nginx"], "target.image=nginx: must be in a private ECR repository"),
        (["job.region=us-east-1"], "must be in the job's region, us-east-1"),
        ([f"target.image={IMAGE}:cpu-2", "target=gpu"], "tag is for cpu"),
        (["job.role=null"], "job.role is missing; `make setup-aws` creates one"),
        (["job.output=null"], "job.output is missing"),
        (["instance=ml.c7i.xlarge"], "instance=ml.c7i.xlarge: no such key"),
    ],
)
def test_a_wrong_setting_of_an_endpoint_is_one_line_that_names_it(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    lines = refusal(capsys, "deploy", "the-job", *KNOWN, *arguments)
    assert [found for found in lines if line in found], lines
    assert len(lines) == len(set(lines)) <= 2


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["input=/data"], "input=/data: must be s3://bucket/prefix"),
        (["output=s3://bucket/in/out"], "must not be inside input=s3://bucket/in"),
        (["max_payload_mb=101"], "max_payload_mb=101: must be at most 100"),
        (["max_concurrent=5"], "max_payload_mb=25: must be at most 20"),
        (["instance_type=ml.g6.xlarge"], "instance_type=ml.g6.xlarge: must be"),
    ],
)
def test_a_wrong_setting_of_a_transform_is_one_line_that_names_it(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    lines = refusal(capsys, "transform", "the-job", *KNOWN, *S3, *arguments)
    assert [found for found in lines if line in found], lines


@pytest.mark.parametrize("jobs", [[], ["one", "two"]])
def test_exactly_one_job_must_be_named(capsys: pytest.CaptureFixture[str], jobs: list[str]) -> None:
    (line,) = refusal(capsys, "deploy", *jobs, *KNOWN)
    assert "must be the name of one training job" in line


def test_two_deployments_of_a_long_name_have_models_with_names_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    requests = planned(capsys, "deploy", f"name={'n' * 63}")
    name = requests["CreateModel"]["ModelName"]
    assert len(name) == 63 and name.startswith("nnn") and name[-7] == "-"


def test_a_dry_run_needs_neither_boto3_nor_credentials() -> None:
    program = (
        "import sys\n"
        "from launch.deploy import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "loaded = {'torch', 'numpy', 'sagemaker', 'boto3'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    for command in (["deploy"], ["transform", *S3]):
        done = subprocess.run(
            [sys.executable, "-c", program, *command, "the-job", *KNOWN],
            cwd=ROOT,
            env={"DRY_RUN": "1", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
