"""Endpoints of a trained model: planned, created, asked, listed, deleted."""

import datetime
import json
import re
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import botocore.session
import pytest
from botocore.validate import validate_parameters
from moto.sagemaker.models import FakeEndpointConfig

from launch import setup_aws
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker import hosting, training_request
from tests.launch.conftest import ACCOUNT, BUCKET, REGION, ROLE, ROOT, Answer, Aws
from tests.launch.sagemaker.cloudwatch import write_lines

JOB = "the-job"
MODEL = f"s3://{BUCKET}/runs/{JOB}/output/model.tar.gz"
NOW = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC).timestamp()


def description(image: str, **more: Any) -> dict[str, Any]:
    return {
        "TrainingJobName": JOB,
        "TrainingJobStatus": "Completed",
        "RoleArn": ROLE,
        "AlgorithmSpecification": {"TrainingImage": image},
        "ResourceConfig": {"InstanceType": "ml.c7i.2xlarge", "InstanceCount": 1},
        "ModelArtifacts": {"S3ModelArtifacts": MODEL},
        **more,
    }


@pytest.fixture
def job(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Aws:
    """An account with one completed training job."""
    monkeypatch.setattr(hosting, "_POLL_S", 0)
    # moto's list of types is older than botocore's.
    monkeypatch.setattr(FakeEndpointConfig, "validate_instance_type", lambda *_: None)
    answer_job(aws)
    aws.client("s3").put_object(Bucket=BUCKET, Key=MODEL.partition(f"{BUCKET}/")[2], Body=b"x")
    return aws


def answer_job(aws: Aws, **more: Any) -> None:
    aws.answers["DescribeTrainingJob"] = [(200, description(aws.pretend_image(), **more))]


def answer_endpoint(state: str, config: str = "old", **more: Any) -> Answer:
    return 200, {
        "EndpointName": JOB,
        "EndpointArn": f"arn:aws:sagemaker:{REGION}:123456789012:endpoint/{JOB}",
        "EndpointConfigName": config,
        "EndpointStatus": state,
        "CreationTime": NOW,
        "LastModifiedTime": NOW,
        **more,
    }


def left(aws: Aws) -> list[str]:
    """The names of all endpoints, their configs and models."""
    client = aws.client("sagemaker")
    return [
        *(item["EndpointName"] for item in client.list_endpoints()["Endpoints"]),
        *(item["EndpointConfigName"] for item in client.list_endpoint_configs()["EndpointConfigs"]),
        *(item["ModelName"] for item in client.list_models()["Models"]),
    ]


class StoppedClock(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.datetime(2026, 11, 22, tzinfo=tz)


def stop_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the next deployment's model a known name."""
    monkeypatch.setattr(training_request, "datetime", StoppedClock)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert hosting.main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert hosting.main(arguments) == 1
    return capsys.readouterr().err


def test_a_job_is_deployed_listed_and_undeployed(
    job: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(capsys, JOB, "variant.InitialInstanceCount=2")
    assert f'AWS bills it until make sagemaker-deploy ARGS="undeploy {JOB}"' in out
    assert f"aws sagemaker-runtime invoke-endpoint --endpoint-name {JOB} " in out
    (model,) = job.made("CreateModel")
    assert model["PrimaryContainer"]["ModelDataUrl"] == MODEL
    assert model["ExecutionRoleArn"] == ROLE
    assert sagemaker.main(["status"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert all(part in line for part in ("Endpoint", "InService", JOB))
    assert "deleted, with its config and model" in run(capsys, "undeploy", JOB)
    assert not left(job)


@pytest.mark.parametrize("state", ["Stopped", "Failed"])
def test_the_model_of_a_job_that_did_not_finish_is_deployed_with_consent_only(
    state: str, job: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_job(job, TrainingJobStatus=state)
    error = refused(capsys, JOB)
    assert error.startswith(f"{JOB}: the job is {state}, so its model is unfinished")
    assert error.count("\n") == 1 and "add unfinished=true" in error
    assert not left(job) and not job.made("CreateModel")
    run(capsys, JOB, "unfinished=true")
    assert left(job)


def test_a_dry_run_prints_what_is_then_sent(
    job: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_clock(monkeypatch)
    run(capsys, "deploy", JOB)
    planned = [
        f"target.image={job.pretend_image()}",
        f"job.role={ROLE}",
        f"job.output=s3://{BUCKET}/runs",
    ]
    monkeypatch.setenv("DRY_RUN", "1")
    printed = json.loads(run(capsys, "deploy", JOB, *planned))
    assert printed == {operation: job.made(operation)[0] for operation in printed}


def test_a_dry_run_needs_no_more_than_a_deployment(
    job: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_clock(monkeypatch)
    answer_job(job, ResourceConfig={"InstanceType": "ml.g5.xlarge", "InstanceCount": 1})
    typed = [JOB, "instance_type=ml.g6.xlarge"]
    run(capsys, *typed)
    monkeypatch.setenv("DRY_RUN", "1")
    printed = json.loads(run(capsys, *typed))
    (model,) = job.made("CreateModel")
    model["PrimaryContainer"] |= {
        "Image": f"IMAGE-OF-{JOB}",
        "ModelDataUrl": f"s3://OUTPUT-OF-{JOB}/{JOB}/output/model.tar.gz",
    }
    model["ExecutionRoleArn"] = f"arn:aws:iam::000000000000:role/ROLE-OF-{JOB}"
    sent = {operation: job.made(operation)[0] for operation in printed}
    assert printed == {**sent, "CreateModel": model}


@pytest.mark.parametrize("key", ["instance_type", "variant.InstanceType"])
def test_a_job_on_cpus_gets_no_gpu(job: Aws, capsys: pytest.CaptureFixture[str], key: str) -> None:
    err = refused(capsys, JOB, f"{key}=ml.g6.xlarge")
    assert "instance_type=ml.g6.xlarge: must be a CPU type" in err and err.count("\n") == 1
    assert not job.made("CreateModel")


@pytest.mark.parametrize("dry", ["0", "1"])
def test_what_boto3_would_not_send_is_refused_before_anything_is_created(
    job: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, dry: str
) -> None:
    image = f"target.image={job.pretend_image()}"
    monkeypatch.setenv("DRY_RUN", dry)
    planned = [image, f"job.role={ROLE}", f"job.output=s3://{BUCKET}/runs"]
    err = refused(capsys, JOB, "variant.InitialInstanceCount=two", *planned)
    assert "InitialInstanceCount" in err and not job.made("CreateModel")


def test_an_endpoint_is_listed_however_many_jobs_are_newer(
    job: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, JOB)
    listed = {"TrainingJobArn": ROLE, "CreationTime": 4e9, "TrainingJobStatus": "Completed"}
    jobs = [{**listed, "TrainingJobName": f"newer-{number}"} for number in range(10)]
    job.answers["ListTrainingJobs"] = [(200, {"TrainingJobSummaries": jobs})]
    one: dict[str, Any] = {"EndpointArn": "arn", "EndpointStatus": "InService"}
    one |= {"CreationTime": NOW, "LastModifiedTime": NOW}
    pages = [[{**one, "EndpointName": f"old-{page}-{n}"} for n in range(10)] for page in range(2)]
    job.answers["ListEndpoints"] = [
        (200, {"Endpoints": pages[0], "NextToken": "more"}),
        (200, {"Endpoints": pages[1]}),
    ]
    assert sagemaker.main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[:10]] == [f"newer-{n}" for n in range(10)]
    assert len(lines) == 30 and all("Endpoint" in line for line in lines[10:])


def test_undeploy_keeps_a_config_that_somebody_else_made(
    job: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, JOB)
    (own,) = (request["ModelName"] for request in job.made("CreateModel"))
    job.answers["DescribeEndpoint"] = [answer_endpoint("InService", "by-hand")]
    assert "its config by-hand stays" in run(capsys, "undeploy", JOB)
    assert left(job) == [own, own]


def test_an_endpoint_that_does_not_start_shows_its_last_lines_and_the_reason(
    job: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    group = f"/aws/sagemaker/Endpoints/{JOB}"
    write_lines(job, {"i-0": [(0, "loading"), (1, "no model")]}, job="AllTraffic", group=group)
    job.answers["DescribeEndpoint"] = [
        answer_endpoint("Creating"),
        answer_endpoint("Failed", FailureReason="the container did not answer"),
    ]
    err = refused(capsys, "deploy", JOB)
    assert err.splitlines() == [
        "i-0 loading",
        "i-0 no model",
        f"endpoint {JOB}: the container did not answer; "
        f'make sagemaker-deploy ARGS="undeploy {JOB}" deletes it',
    ]


@pytest.mark.parametrize("operation", ["CreateEndpointConfig", "CreateEndpoint"])
def test_a_refused_step_leaves_nothing_behind(
    job: Aws, capsys: pytest.CaptureFixture[str], operation: str
) -> None:
    job.refuse(operation, "ResourceLimitExceeded", "the account limit is 0 instances")
    err = refused(capsys, "deploy", JOB)
    assert "the account limit is 0 instances" in err and "Service Quotas" in err
    assert not left(job)


def test_an_endpoint_that_exists_is_left_as_it_is(
    job: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "deploy", JOB)
    before = left(job)
    stop_clock(monkeypatch)
    # moto would replace it.
    job.refuse(
        "CreateEndpoint", "ValidationException", 'Cannot create already existing endpoint "arn".'
    )
    err = refused(capsys, "deploy", JOB)
    assert "already existing endpoint" in err and err.count("\n") == 1
    assert left(job) == before


@pytest.mark.parametrize("model", ["missing/model.tar.gz", "output/model/"])
def test_what_is_no_archive_is_refused_before_anything_is_created(
    job: Aws, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    answer_job(job, ModelArtifacts={"S3ModelArtifacts": f"s3://{BUCKET}/{model}"})
    err = refused(capsys, JOB)
    assert model in err and err.count("\n") == 1
    assert not job.made("CreateModel")


@pytest.mark.parametrize(("folder", "warned"), [("runs/captured", False), ("captured", True)])
def test_an_output_of_an_endpoint_outside_of_the_jobs_is_named(
    folder: str,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    key, uri = "request.DataCaptureConfig", f"s3://bucket/{folder}"
    capture = [f"{key}.DestinationS3Uri={uri}", f"{key}.InitialSamplingPercentage=100"]
    capture += [f"{key}.CaptureOptions=[{{CaptureMode:Input}}]"]
    known = [f"{name}={value}" for name, value in KNOWN.items()]
    assert hosting.main([JOB, *known, *capture]) == 0
    said = f"{key}.DestinationS3Uri={uri}: outside of job.output=s3://bucket/runs;"
    assert (said in capsys.readouterr().err) == warned


def test_a_job_without_a_model_cannot_be_deployed(
    job: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_job(job, ModelArtifacts={}, TrainingJobStatus="InProgress")
    assert f"{JOB}: has no model, the job is InProgress" in refused(capsys, "deploy", JOB)


def test_a_job_on_gpus_gets_a_gpu_and_the_job_network(
    job: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    vpc = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
    groups = [{"InstanceGroupName": "a", "InstanceType": "ml.p5.48xlarge", "InstanceCount": 1}]
    answer_job(
        job,
        VpcConfig=vpc,
        EnableNetworkIsolation=True,
        ResourceConfig={"InstanceGroups": groups},
    )
    run(capsys, "deploy", JOB)
    (config,), (model,) = job.made("CreateEndpointConfig"), job.made("CreateModel")
    assert config["ProductionVariants"][0]["InstanceType"] == "ml.g6.xlarge"
    assert (model["VpcConfig"], model["EnableNetworkIsolation"]) == (vpc, True)


def test_a_dry_run_undeploys_nothing(
    job: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    assert "DRY_RUN=1: undeploy has no dry run" in refused(capsys, "undeploy", JOB)
    assert not job.made("DeleteEndpoint")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["undeploy"], "no endpoint given"),
        (["undeploy", "nothing"], "Could not find endpoint"),
        (["nothing"], f"nothing: no such job in {REGION}"),
        (["invoke", JOB, "a.jpg"], "invoke: retired: use `aws sagemaker-runtime invoke-endpoint"),
        ([], "no job given"),
        (["one", "two"], "one two: must be the name of one job"),
        ([JOB, "--wiat"], "--wiat: must be the name of one job"),
    ],
)
@pytest.mark.usefixtures("aws")
def test_a_wrong_command_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    err = refused(capsys, *arguments)
    assert line in err and err.count("\n") == 1


IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/training:1"
KNOWN = {"job.role": ROLE, "job.output": "s3://bucket/runs/", "target.image": IMAGE}
Planned = Callable[..., dict[str, Any]]


def _shape(operation: str) -> Any:
    model = botocore.session.get_session().get_service_model("sagemaker")
    return model.operation_model(operation).input_shape


@pytest.fixture
def planned(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Planned:
    """The requests that a dry run prints, valid as far as botocore checks them."""
    monkeypatch.setenv("DRY_RUN", "1")

    def requests(*arguments: str) -> dict[str, Any]:
        known = [f"{key}={value}" for key, value in KNOWN.items()]
        printed: dict[str, Any] = json.loads(run(capsys, JOB, *known, *arguments))
        for operation, request in printed.items():
            validate_parameters(request, _shape(operation))
        return printed

    return requests


def test_an_endpoint_serves_the_image_and_the_model_of_the_job(
    planned: Planned,
) -> None:
    requests = planned("environment.SERVE=1", "job.tags.team=vision")
    assert list(requests) == ["CreateModel", "CreateEndpointConfig", "CreateEndpoint"]
    model, config, endpoint = requests.values()
    assert model["PrimaryContainer"] == {
        "Image": IMAGE,
        "ModelDataUrl": f"s3://bucket/runs/{JOB}/output/model.tar.gz",
        "Environment": {"SERVE": "1"},
    }
    assert model["ExecutionRoleArn"] == ROLE
    (variant,) = config["ProductionVariants"]
    assert variant["ModelName"] == model["ModelName"]
    assert (variant["InstanceType"], variant["InitialInstanceCount"]) == ("ml.c7i.xlarge", 1)
    assert endpoint["EndpointName"] == JOB
    assert endpoint["EndpointConfigName"] == config["EndpointConfigName"]
    assert all(r["Tags"] == [{"Key": "team", "Value": "vision"}] for r in requests.values())


def test_a_gpu_endpoint_has_the_system_image_with_the_newest_driver(
    planned: Planned,
) -> None:
    requests = planned("target=gpu")
    (variant,) = requests["CreateEndpointConfig"]["ProductionVariants"]
    assert variant["InstanceType"].startswith("ml.g")
    listed = _shape("CreateEndpointConfig").members["ProductionVariants"].member
    known = listed.members["InferenceAmiVersion"].metadata["enum"]
    gpu = [name for name in known if "inference-gpu" in name]
    newest = max(gpu, key=lambda name: list(map(int, re.findall(r"\d+", name.split("gpu")[1]))))
    assert variant["InferenceAmiVersion"] == newest


def test_a_serverless_endpoint_has_memory_instead_of_machines(
    planned: Planned,
) -> None:
    capacity = {"MemorySizeInMB": 4096, "MaxConcurrency": 10}
    requests = planned("variant.ServerlessConfig={MemorySizeInMB:4096,MaxConcurrency:10}")
    (variant,) = requests["CreateEndpointConfig"]["ProductionVariants"]
    assert variant.pop("ServerlessConfig") == capacity
    assert set(variant) == {"VariantName", "ModelName"}


def test_members_without_a_setting_reach_the_endpoints_config(planned: Planned) -> None:
    requests = planned(
        "request.AsyncInferenceConfig.OutputConfig.S3OutputPath=s3://bucket/answers",
        "environment.SAGEMAKER_MAX_PAYLOAD_IN_MB=512",
        "variant.InferenceAmiVersion=al2-ami-sagemaker-inference-gpu-2",
    )
    config = requests["CreateEndpointConfig"]
    output = {"OutputConfig": {"S3OutputPath": "s3://bucket/answers"}}
    assert config["AsyncInferenceConfig"] == output
    assert config["ProductionVariants"][0]["InferenceAmiVersion"].endswith("gpu-2")
    container = requests["CreateModel"]["PrimaryContainer"]
    assert container["Environment"] == {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "512"}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["instance=ml.c7i.xlarge"], "instance=ml.c7i.xlarge: no such key"),
        (["environment.SERVE_OVERRIDES=serve.max_batchh=8"], "environment: serve.max_batchh=8"),
        (["environment.SERVE_OVERRIDES=serve.port=80"], "environment: serve.port=80: SageMaker"),
        (["environment.SAGEMAKER_BIND_TO_PORT=80"], "environment: serve.port=80: SageMaker"),
        (["environment.SERVE_OVERRIDES=serve.host=127.0.0.1"], "environment: serve.host=127.0.0.1"),
        (["environment.SERVE_OVERRIDES=model_dir=/models"], "environment: model_dir=/models"),
        (["environment.ML_ROOT=/tmp"], "environment: ML_ROOT=/tmp: SageMaker"),
        (["environment.SAGEMAKER_MULTI_MODEL=true"], "environment: SAGEMAKER_MULTI_MODEL=true"),
        (
            ["environment.SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT=text/csv"],
            "environment: SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT=text/csv: retired: use ",
        ),
        (
            ["environment.SAGEMAKER_MAX_PAYLOAD_IN_MB=2000"],
            "environment: serve.max_payload_mb=2000: Input should be less than or equal to ",
        ),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    line: str,
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    known = [f"{key}={value}" for key, value in KNOWN.items()]
    err = refused(capsys, JOB, *known, *arguments)
    assert line in err and err.count("\n") == 1


def test_two_deployments_of_a_long_name_have_models_with_names_of_their_own(
    planned: Planned,
) -> None:
    requests = planned(f"name={'n' * 63}")
    name = requests["CreateModel"]["ModelName"]
    assert re.fullmatch(r"n{42,}(-\d{6}){2}-\d{3}", name) and len(name) == 63


def test_a_dry_run_needs_neither_boto3_nor_credentials() -> None:
    program = (
        "import sys\n"
        "from launch.sagemaker.hosting import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "loaded = {'torch', 'numpy', 'sagemaker', 'boto3'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    known = [f"{key}={value}" for key, value in KNOWN.items()]
    done = subprocess.run(
        [sys.executable, "-c", program, JOB, *known],
        cwd=ROOT,
        env={"DRY_RUN": "1", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", [hosting, setup_aws])
def test_help_is_printed(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--help"]) == 0
    assert "ARGS=" in capsys.readouterr().out
