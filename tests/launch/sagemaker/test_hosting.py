"""Endpoints of a trained model: planned, created, asked, listed, deleted."""

import datetime
import json
import re
from collections.abc import Callable
from typing import Any

import botocore.session
import pytest
from moto.sagemaker.models import FakeEndpointConfig

from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker import hosting, training_request
from tests.launch.conftest import (
    BUCKET,
    DROPPED,
    IMAGE,
    JOB,
    MINIMAL,
    MODEL,
    REGION,
    ROLE,
    Answer,
    Aws,
    Terminal,
    answer_job,
    refusal,
)
from tests.launch.sagemaker.cloudwatch import write_lines

NOW = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC).timestamp()
Planned = Callable[..., dict[str, Any]]


@pytest.fixture
def job(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Aws:
    """An account with one completed training job."""
    monkeypatch.setattr(hosting, "_POLL_S", 0)
    # moto's list of types is older than botocore's.
    monkeypatch.setattr(FakeEndpointConfig, "validate_instance_type", lambda *_: None)
    answer_job(aws)
    aws.client("s3").put_object(Bucket=BUCKET, Key=MODEL.partition(f"{BUCKET}/")[2], Body=b"x")
    return aws


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


def test_a_job_is_deployed_listed_and_undeployed(job: Aws, terminal: Terminal) -> None:
    out = terminal.out(hosting.main, JOB, "variant.InitialInstanceCount=2")
    assert f'AWS bills it until make sagemaker-deploy ARGS="undeploy {JOB}"' in out
    assert f"aws sagemaker-runtime invoke-endpoint --endpoint-name {JOB} " in out
    (line,) = terminal.out(sagemaker.main, "status").splitlines()
    assert all(part in line for part in ("Endpoint", "InService", JOB))
    assert "deleted, with its config and model" in terminal.out(hosting.main, "undeploy", JOB)
    assert not left(job)


@pytest.mark.parametrize("state", ["Stopped", "Failed"])
def test_the_model_of_a_job_that_did_not_finish_is_deployed_with_consent_only(
    state: str, job: Aws, terminal: Terminal
) -> None:
    answer_job(job, status=state)
    line = terminal.refusal(hosting.main, JOB)
    assert line.startswith(f"{JOB}: the job is {state}, so its model is unfinished")
    assert "add unfinished=true" in line and not left(job)
    terminal.out(hosting.main, JOB, "unfinished=true")
    assert left(job)


def test_a_dry_run_prints_what_is_then_sent_but_for_what_it_cannot_know(
    job: Aws, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_clock(monkeypatch)
    terminal.out(hosting.main, "deploy", JOB)
    monkeypatch.setenv("DRY_RUN", "1")
    printed = json.loads(terminal.out(hosting.main, "deploy", JOB, *MINIMAL))
    sent = {operation: job.made(operation)[0] for operation in printed}
    assert printed == sent
    sent["CreateModel"]["PrimaryContainer"] |= {
        "Image": f"IMAGE-OF-{JOB}",
        "ModelDataUrl": f"s3://OUTPUT-OF-{JOB}/{JOB}/output/model.tar.gz",
    }
    sent["CreateModel"]["ExecutionRoleArn"] = f"arn:aws:iam::000000000000:role/ROLE-OF-{JOB}"
    assert json.loads(terminal.out(hosting.main, JOB)) == sent
    # The job may have trained on a GPU.
    assert terminal.out(hosting.main, JOB, "instance_type=ml.g6.xlarge")


def test_a_job_on_cpus_gets_no_gpu(job: Aws, terminal: Terminal) -> None:
    line = terminal.refusal(hosting.main, JOB, "variant.InstanceType=ml.g6.xlarge")
    assert "instance_type=ml.g6.xlarge: must be a CPU type" in line
    assert not job.made("CreateModel")


@pytest.mark.parametrize("member", ["InstanceGroups", "InstancePreferences"])
def test_a_job_on_gpus_gets_a_gpu_and_the_jobs_network(
    member: str, job: Aws, terminal: Terminal
) -> None:
    vpc = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
    machines = {member: [{"InstanceType": "ml.p5.48xlarge", "InstanceCount": 1}]}
    answer_job(job, VpcConfig=vpc, EnableNetworkIsolation=True, ResourceConfig=machines)
    terminal.out(hosting.main, "deploy", JOB)
    (config,), (model,) = job.made("CreateEndpointConfig"), job.made("CreateModel")
    assert config["ProductionVariants"][0]["InstanceType"] == "ml.g6.xlarge"
    assert (model["VpcConfig"], model["EnableNetworkIsolation"]) == (vpc, True)


def test_an_image_other_than_the_jobs_is_not_ignored(job: Aws, terminal: Terminal) -> None:
    line = terminal.refusal(hosting.main, JOB, f"target.image={IMAGE}-2")
    assert line.startswith(f"target.image={IMAGE}-2: the endpoint has what the job has; set ")
    assert not job.made("CreateModel")


def test_an_endpoint_is_listed_however_many_jobs_are_newer(job: Aws, terminal: Terminal) -> None:
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
    lines = terminal.out(sagemaker.main, "status").splitlines()
    assert [line.split()[-1] for line in lines[:10]] == [f"newer-{n}" for n in range(10)]
    assert len(lines) == 30 and all("Endpoint" in line for line in lines[10:])


def test_an_endpoint_that_is_gone_does_not_keep_the_others(job: Aws, terminal: Terminal) -> None:
    terminal.out(hosting.main, JOB)
    line = terminal.refusal(hosting.main, "undeploy", "gone", JOB)
    assert line.startswith("endpoint gone: ") and "Could not find endpoint" in line
    assert not left(job)


def test_undeploy_keeps_a_config_that_somebody_else_made(job: Aws, terminal: Terminal) -> None:
    terminal.out(hosting.main, JOB)
    (own,) = (request["ModelName"] for request in job.made("CreateModel"))
    job.answers["DescribeEndpoint"] = [answer_endpoint("InService", "by-hand")]
    assert "its config by-hand stays" in terminal.out(hosting.main, "undeploy", JOB)
    assert left(job) == [own, own]


def deploy_and_share_with_live(job: Aws, terminal: Terminal) -> str:
    """Returns the config of an endpoint that another, `live`, has been updated to."""
    terminal.out(hosting.main, JOB)
    (config,) = (request["EndpointConfigName"] for request in job.made("CreateEndpointConfig"))
    client = job.client("sagemaker")
    client.create_endpoint(EndpointName="live", EndpointConfigName=config)
    return str(config)


def test_undeploy_keeps_a_config_and_model_that_another_endpoint_has_been_updated_to(
    job: Aws, terminal: Terminal
) -> None:
    config = deploy_and_share_with_live(job, terminal)
    out = terminal.out(hosting.main, "undeploy", JOB)
    assert out == f"endpoint {JOB}: deleted; its config {config} stays, live uses it\n"
    assert left(job) == ["live", config, config]
    terminal.out(hosting.main, "undeploy", "live")
    assert not left(job)


def test_undeploy_keeps_a_config_if_the_caller_may_not_see_what_other_endpoints_have(
    job: Aws, terminal: Terminal
) -> None:
    config = deploy_and_share_with_live(job, terminal)
    denied = refusal("AccessDeniedException", "not authorized: sagemaker:DescribeEndpoint on live")
    job.answers["DescribeEndpoint"] = [answer_endpoint("InService", config), denied]
    line = terminal.refusal(hosting.main, "undeploy", JOB)
    assert line.startswith(f"endpoint {JOB}: deleted; its config {config} may stay: An error")
    assert "sagemaker:DescribeEndpoint on live" in line
    assert left(job) == ["live", config, config]


def test_an_endpoint_that_does_not_start_shows_its_last_lines_and_the_reason(
    job: Aws, terminal: Terminal
) -> None:
    group = f"/aws/sagemaker/Endpoints/{JOB}"
    write_lines(job, {"i-0": [(0, "loading"), (1, "no model")]}, job="AllTraffic", group=group)
    job.answers["DescribeEndpoint"] = [
        answer_endpoint("Creating"),
        answer_endpoint("Failed", FailureReason="the container did not answer"),
    ]
    assert terminal.refusals(hosting.main, "deploy", JOB) == [
        "i-0 loading",
        "i-0 no model",
        f"endpoint {JOB}: the container did not answer; "
        f'make sagemaker-deploy ARGS="undeploy {JOB}" deletes it',
    ]


@pytest.mark.parametrize("operation", ["CreateEndpointConfig", "CreateEndpoint"])
def test_a_refused_step_leaves_nothing_behind_but_an_endpoint_that_was_there(
    job: Aws, terminal: Terminal, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.out(hosting.main, JOB)
    before = left(job)
    stop_clock(monkeypatch)  # moto would replace an endpoint of the same name
    job.refuse(operation, "ResourceLimitExceeded", "the account limit is 0 instances")
    line = terminal.refusal(hosting.main, "deploy", JOB)
    assert "the account limit is 0 instances" in line and "Service Quotas" in line
    assert "target.instance_type" not in line  # which a deployment refuses
    assert left(job) == before


def test_an_endpoint_whose_creation_got_no_answer_keeps_its_config_and_serves(
    job: Aws, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 repeats the request, which AWS then refuses."""
    stop_clock(monkeypatch)
    message = "Cannot create already existing endpoint"
    job.answers["CreateEndpoint"] = [DROPPED, refusal("ValidationException", message)]
    made = f"{JOB}-261122-000000-000"
    job.answers["DescribeEndpoint"] = [answer_endpoint("InService", made)]
    assert f"endpoint {JOB} serves" in terminal.out(hosting.main, JOB)
    assert left(job) == [made, made]


@pytest.mark.usefixtures("job")
def test_an_endpoint_with_a_queue_is_told_with_the_call_that_it_takes(terminal: Terminal) -> None:
    queue = f"request.AsyncInferenceConfig.OutputConfig.S3OutputPath=s3://{BUCKET}/runs/answers"
    out = terminal.out(hosting.main, JOB, queue)
    assert f"invoke-endpoint-async --endpoint-name {JOB} --content-type image/jpeg --input-l" in out


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ({"ModelArtifacts": {}, "status": "InProgress"}, "has no model, the job is InP"),
        ({"ModelArtifacts": {"S3ModelArtifacts": f"s3://{BUCKET}/a/model.tar.gz"}}, "its model=s3"),
    ],
)
def test_a_job_without_an_archive_is_refused_before_anything_is_created(
    job: Aws, terminal: Terminal, members: dict[str, Any], line: str
) -> None:
    answer_job(job, **members)
    assert f"{JOB}: {line}" in terminal.refusal(hosting.main, JOB)
    assert not job.made("CreateModel")


def test_a_dry_run_undeploys_nothing(
    job: Aws, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    assert "DRY_RUN=1: undeploy has no dry run" in terminal.refusal(hosting.main, "undeploy", JOB)
    assert not job.made("DeleteEndpoint")


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("undeploy", "no endpoint given"),
        ("undeploy nothing", "Could not find endpoint"),
        ("nothing", f"nothing: no such job in {REGION}"),
        (f"invoke {JOB} a.jpg", "invoke: retired: use `aws sagemaker-runtime invoke-endpoint"),
        ("", "no job given"),
        ("one two", "one two: must be the name of one job"),
        (f"{JOB} --wiat", "--wiat: must be the name of one job"),
    ],
)
def test_a_wrong_command_is_one_line(terminal: Terminal, arguments: str, line: str) -> None:
    assert line in terminal.refusal(hosting.main, *arguments.split())


def _shape(operation: str) -> Any:
    model = botocore.session.get_session().get_service_model("sagemaker")
    return model.operation_model(operation).input_shape


@pytest.fixture
def planned(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Planned:
    """The requests that a dry run prints."""
    monkeypatch.setenv("DRY_RUN", "1")

    def requests(*arguments: str) -> dict[str, Any]:
        printed: dict[str, Any] = json.loads(terminal.out(hosting.main, JOB, *MINIMAL, *arguments))
        return printed

    return requests


def test_an_endpoint_serves_the_image_and_the_model_of_the_job(planned: Planned) -> None:
    requests = planned("environment.SERVE=1", "job.tags.team=vision")
    model, config, endpoint = requests.values()
    assert model["PrimaryContainer"] == {
        "Image": IMAGE,
        "ModelDataUrl": MODEL,
        "Environment": {"SERVE": "1"},
    }
    assert model["ExecutionRoleArn"] == ROLE
    (variant,) = config["ProductionVariants"]
    assert variant["ModelName"] == model["ModelName"]
    assert (variant["InstanceType"], variant["InitialInstanceCount"]) == ("ml.c7i.xlarge", 1)
    assert "InferenceAmiVersion" not in variant
    assert endpoint["EndpointName"] == JOB
    assert endpoint["EndpointConfigName"] == config["EndpointConfigName"]
    assert all(r["Tags"] == [{"Key": "team", "Value": "vision"}] for r in requests.values())


@pytest.mark.parametrize("setting", ["instance_type", "variant.InstanceType"])
def test_a_gpu_endpoint_has_the_system_image_with_the_newest_driver(
    planned: Planned, setting: str
) -> None:
    (variant,) = planned(f"{setting}=ml.g6.xlarge")["CreateEndpointConfig"]["ProductionVariants"]
    assert variant["InstanceType"].startswith("ml.g")
    listed = _shape("CreateEndpointConfig").members["ProductionVariants"].member
    known = listed.members["InferenceAmiVersion"].metadata["enum"]
    gpu = [name for name in known if "inference-gpu" in name]
    newest = max(gpu, key=lambda name: list(map(int, re.findall(r"\d+", name.split("gpu")[1]))))
    assert variant["InferenceAmiVersion"] == newest


def test_a_serverless_endpoint_has_memory_instead_of_machines(planned: Planned) -> None:
    capacity = {"MemorySizeInMB": 4096, "MaxConcurrency": 10}
    requests = planned("variant.ServerlessConfig={MemorySizeInMB:4096,MaxConcurrency:10}")
    (variant,) = requests["CreateEndpointConfig"]["ProductionVariants"]
    assert variant.pop("ServerlessConfig") == capacity
    assert set(variant) == {"VariantName", "ModelName"}


def test_members_without_a_setting_reach_the_endpoints_config(planned: Planned) -> None:
    requests = planned(
        f"request.AsyncInferenceConfig.OutputConfig.S3OutputPath=s3://{BUCKET}/answers",
        "variant.InferenceAmiVersion=al2-ami-sagemaker-inference-gpu-2",
    )
    config = requests["CreateEndpointConfig"]
    output = {"OutputConfig": {"S3OutputPath": f"s3://{BUCKET}/answers"}}
    assert config["AsyncInferenceConfig"] == output
    assert config["ProductionVariants"][0]["InferenceAmiVersion"].endswith("gpu-2")


def test_a_long_name_of_an_endpoint_leaves_room_for_the_time(planned: Planned) -> None:
    name = planned(f"name={'n' * 63}")["CreateModel"]["ModelName"]
    assert re.fullmatch(r"n{42,}(-\d{6}){2}-\d{3}", name) and len(name) == 63


@pytest.mark.usefixtures("dry_run")
@pytest.mark.parametrize(("folder", "warned"), [("runs/captured", False), ("captured", True)])
def test_an_output_of_an_endpoint_outside_of_the_jobs_is_named(
    folder: str, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    key, uri = "request.DataCaptureConfig", f"s3://{BUCKET}/{folder}"
    capture = [f"{key}.DestinationS3Uri={uri}", f"{key}.InitialSamplingPercentage=100"]
    capture += [f"{key}.CaptureOptions=[{{CaptureMode:Input}}]"]
    assert hosting.main([JOB, *MINIMAL, *capture]) == 0
    said = f"{key}.DestinationS3Uri={uri}: outside of s3://{BUCKET}/runs;"
    assert (said in capsys.readouterr().err) == warned


@pytest.mark.usefixtures("dry_run")
@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("instance=ml.c7i.xlarge", "instance=ml.c7i.xlarge: no such key"),
        ("instance_count=2", "instance_count=2: no such key; did you mean instance_type?"),
        (
            "target.instance_type=ml.c7i.large",
            "target.instance_type=ml.c7i.large: the endpoint has",
        ),
        ("job.environment.A=1", "job.environment.A=1: the endpoint has what the job has; set "),
        ("resume_from=a", "resume_from=a: the endpoint has what the job has"),
        (
            "variant.ServerlessConfig={MemorySizeInMB:4096,MaxConcurrency:10} instance_type=ml.a",
            "instance_type=ml.a: an endpoint with variant.ServerlessConfig has no instances",
        ),
        ("variant.InitialInstanceCount=two", "Invalid type for parameter ProductionVariants[0]."),
        ("environment.SERVE_OVERRIDES=serve.max_batchh=8", "environment: serve.max_batchh=8"),
        ("environment.SAGEMAKER_BIND_TO_PORT=80", "environment: serve.port=80: SageMaker asks po"),
        ("environment.SERVE_OVERRIDES=serve.host=127.0.0.1", "environment: serve.host=127.0.0.1"),
        ("environment.SERVE_OVERRIDES=model_dir=/models", "environment: model_dir=/models: Sage"),
        ("environment.ML_ROOT=/tmp", "environment: ML_ROOT=/tmp: SageMaker"),
        ("environment.SAGEMAKER_MULTI_MODEL=true", "environment: SAGEMAKER_MULTI_MODEL=true"),
        ("environment.SAGEMAKER_MAX_PAYLOAD_IN_MB=2000", "environment: serve.max_payload_mb=2000"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(
    terminal: Terminal, setting: str, line: str
) -> None:
    words = setting.split()
    assert terminal.refusal(hosting.main, JOB, *MINIMAL, *words).startswith(line)
