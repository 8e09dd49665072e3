"""Endpoints and batch transforms of a trained model: created, asked, listed, deleted."""

import datetime
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from moto.sagemaker.models import FakeEndpointConfig

from launch import deploy
from launch.aws.hosting import endpoint
from launch.sagemaker import __main__ as sagemaker
from tests.launch.conftest import BUCKET, REGION, ROLE, Answer, Aws, refusal
from tests.launch.sagemaker.cloudwatch import write_lines

JOB = "the-job"
MODEL = f"s3://{BUCKET}/runs/{JOB}/output/model.tar.gz"
NOW = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC).timestamp()
PRICE = {"terms": {"OnDemand": {"a": {"priceDimensions": {"b": {"pricePerUnit": {"USD": "0.5"}}}}}}}


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
    monkeypatch.setattr(endpoint, "_POLL_S", 0)
    # moto's list of types is older than botocore's.
    monkeypatch.setattr(FakeEndpointConfig, "validate_instance_type", lambda *_: None)
    answer_job(aws)
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
    monkeypatch.setattr(endpoint, "datetime", StoppedClock)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert deploy.main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert deploy.main(arguments) == 1
    return capsys.readouterr().err


def test_a_job_is_deployed_listed_and_undeployed(
    job: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    job.answers["GetProducts"] = [(200, {"PriceList": [json.dumps(PRICE)]})]
    out = run(capsys, "deploy", JOB, "instance_count=2")
    cost = "$1.00 per hour for 2 x ml.c7i.xlarge"
    assert f"cost: {cost}, until make sagemaker-undeploy ARGS={JOB}" in out
    assert f'make sagemaker-invoke ARGS="{JOB} IMAGE.jpg"' in out
    (model,) = job.made("CreateModel")
    assert model["PrimaryContainer"]["ModelDataUrl"] == MODEL
    assert model["ExecutionRoleArn"] == ROLE
    for command in ([], [JOB]):
        assert sagemaker.main(["status", *command]) == 0
        *about_job, line = capsys.readouterr().out.splitlines()
        assert all(part in line for part in ("Endpoint", "InService", JOB, cost))
        assert bool(about_job) == bool(command), "the job itself is described too"
    assert "deleted" in run(capsys, "undeploy", JOB)
    assert not left(job)


@pytest.mark.parametrize("command", [[], [JOB]])
def test_who_may_only_train_sees_the_state_of_jobs(
    job: Aws, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    listed = {"TrainingJobName": JOB, "TrainingJobArn": ROLE, "CreationTime": NOW}
    job.answers["ListTrainingJobs"] = [
        (200, {"TrainingJobSummaries": [{**listed, "TrainingJobStatus": "Completed"}]})
    ]
    for operation in ("DescribeEndpoint", "ListEndpoints", "ListTransformJobs"):
        job.refuse(operation, "AccessDeniedException")
    assert sagemaker.main(["status", *command]) == 0
    assert JOB in capsys.readouterr().out


@pytest.mark.usefixtures("job")
def test_another_jobs_endpoint_with_a_longer_name_is_not_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(capsys, "deploy", JOB, f"name={JOB}-2")
    assert sagemaker.main(["status", JOB]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{JOB}: Completed") and "Endpoint" not in out


def test_ctrl_c_while_waiting_says_that_the_endpoint_still_starts(
    job: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("botocore.waiter.Waiter.wait", interrupted)
    assert deploy.main(["deploy", JOB]) == 130
    assert f"endpoint {JOB}: is still starting" in capsys.readouterr().out
    assert JOB in left(job)


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


def test_a_second_deployment_updates_the_endpoint_and_deletes_what_it_replaced(
    job: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "deploy", JOB, "name=shop")
    (first,) = job.made("CreateModel")
    new = "shop-261122-000000"

    job.answers["UpdateEndpoint"] = [(200, {"EndpointArn": "arn"})]
    job.answers["DescribeEndpoint"] = [
        answer_endpoint("InService", first["ModelName"]),
        answer_endpoint("Updating", first["ModelName"]),
        answer_endpoint("InService", new),
    ]
    stop_clock(monkeypatch)
    out = run(capsys, "deploy", JOB, "name=shop")
    assert "endpoint shop: updating" in out
    assert job.made("UpdateEndpoint") == [{"EndpointName": "shop", "EndpointConfigName": new}]
    assert len(job.made("CreateEndpoint")) == 1
    assert left(job) == ["shop", new, new]


def test_an_update_keeps_a_config_that_somebody_else_made(
    job: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job.answers["UpdateEndpoint"] = [(200, {"EndpointArn": "arn"})]
    job.answers["DescribeEndpoint"] = [
        answer_endpoint("InService", "by-hand"),
        answer_endpoint("InService", f"{JOB}-261122-000000"),
    ]
    stop_clock(monkeypatch)
    run(capsys, "deploy", JOB)
    assert not job.made("DeleteEndpointConfig") and not job.made("DeleteModel")


def test_an_update_that_is_rolled_back_is_an_error_and_leaves_the_earlier_model(
    job: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "deploy", JOB)
    kept = job.made("CreateModel")[0]["ModelName"]
    job.answers["UpdateEndpoint"] = [(200, {"EndpointArn": "arn"})]
    job.answers["DescribeEndpoint"] = [
        answer_endpoint("InService", kept),
        answer_endpoint("RollingBack", kept),
        answer_endpoint("InService", kept, FailureReason="the ping failed"),
    ]
    stop_clock(monkeypatch)
    err = refused(capsys, "deploy", JOB)
    assert "the update failed, and the earlier model serves: the ping failed" in err
    assert left(job) == [JOB, kept, kept]


def test_an_endpoint_that_does_not_start_shows_its_last_lines_and_the_reason(
    job: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    group = f"/aws/sagemaker/Endpoints/{JOB}"
    write_lines(job, {"i-0": [(0, "loading"), (1, "no model")]}, job="AllTraffic", group=group)
    job.answers["DescribeEndpoint"] = [
        refusal("ValidationException", "Could not find endpoint"),
        answer_endpoint("Creating"),
        answer_endpoint("Failed", FailureReason="the container did not answer"),
    ]
    err = refused(capsys, "deploy", JOB)
    assert err.splitlines() == [
        "loading",
        "no model",
        f"endpoint {JOB}: the container did not answer; "
        f"make sagemaker-undeploy ARGS={JOB} deletes it",
    ]


@pytest.mark.parametrize("operation", ["CreateEndpointConfig", "CreateEndpoint"])
def test_a_refused_step_leaves_nothing_behind(
    job: Aws, capsys: pytest.CaptureFixture[str], operation: str
) -> None:
    job.refuse(operation, "ResourceLimitExceeded", "the account limit is 0 instances")
    err = refused(capsys, "deploy", JOB)
    assert "the account limit is 0 instances" in err and "Service Quotas" in err
    assert not left(job)


def test_an_endpoint_that_is_still_changing_is_not_touched(
    job: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    job.answers["DescribeEndpoint"] = [answer_endpoint("Updating")]
    assert f"endpoint {JOB}: is Updating; wait" in refused(capsys, "deploy", JOB)
    assert not job.made("CreateModel")


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


@pytest.mark.parametrize("command", [["deploy"], ["transform", "input=s3://a/b", "output=s3://c"]])
def test_an_unknown_job_is_one_line(
    aws: Aws, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    aws.refuse("DescribeTrainingJob", "ValidationException", "Requested resource not found.")
    aws.refuse("DescribeProcessingJob", "ValidationException", "Requested resource not found.")
    aws.refuse("DescribeTransformJob", "ValidationException", "Requested resource not found.")
    err = refused(capsys, *command, "nothing")
    assert f"nothing: no such job in {REGION}" in err and err.count("\n") == 1


@pytest.mark.parametrize("command", [["undeploy"], ["invoke", __file__]])
@pytest.mark.usefixtures("aws")
def test_an_unknown_endpoint_is_one_line(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    err = refused(capsys, command[0], "nothing", *command[1:])
    assert "nothing: no such endpoint" in err and err.count("\n") == 1


def test_an_endpoint_is_asked_for_each_image(
    job: Aws, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run(capsys, "deploy", JOB)
    job.answers[f"POST /endpoints/{JOB}/invocations"] = [(200, '{"class": "cat"}')]
    for name in ("a.jpg", "b.png"):
        (tmp_path / name).write_bytes(name.encode())
    out = run(capsys, "invoke", JOB, str(tmp_path / "a.jpg"), str(tmp_path / "b.png"))
    assert out.splitlines() == [
        f'{tmp_path}/a.jpg\t{{"class": "cat"}}',
        f'{tmp_path}/b.png\t{{"class": "cat"}}',
    ]
    sent = [call.body for call in job.calls if call.operation.endswith("/invocations")]
    assert sent == [b"a.jpg", b"b.png"]


def test_the_reason_of_a_refused_image_is_shown(
    job: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "deploy", JOB)
    reason = {"message": "Received client error", "OriginalMessage": '{"error": "no image"}'}
    job.answers[f"POST /endpoints/{JOB}/invocations"] = [
        (424, {"__type": "ModelError", "code": "ModelError", **reason})
    ]
    assert refused(capsys, "invoke", JOB, __file__) == f'{__file__}: {{"error": "no image"}}\n'


def test_an_asynchronous_endpoint_is_asked_through_s3(
    job: Aws, bucket: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = {"OutputConfig": {"S3OutputPath": f"s3://{BUCKET}/answers"}}
    (tmp_path / "a.jpg").write_bytes(b"the image")
    job.answers["DescribeEndpoint"] = [answer_endpoint("InService", AsyncInferenceConfig=output)]
    out = run(capsys, "invoke", JOB, str(tmp_path / "a.jpg"))
    (sent,) = [item["Key"] for item in bucket.list_objects_v2(Bucket=BUCKET)["Contents"]]
    assert sent.startswith("answers/input/") and sent.endswith("-a.jpg")
    assert bucket.get_object(Bucket=BUCKET, Key=sent)["Body"].read() == b"the image"
    path, answer = out.strip().split("\t")
    assert path == str(tmp_path / "a.jpg") and answer == '{"default": "response"}'


@pytest.mark.usefixtures("bucket")
def test_the_reason_of_a_refused_queued_image_is_shown(
    job: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    output = {"OutputConfig": {"S3OutputPath": f"s3://{BUCKET}/answers"}}
    job.answers["DescribeEndpoint"] = [answer_endpoint("InService", AsyncInferenceConfig=output)]
    results = {"region": REGION, "results": [{"is_failure": True, "data": "no image"}]}
    url = f"{job.url}/moto-api/static/sagemaker/async-endpoint-results"
    urllib.request.urlopen(url, data=json.dumps(results).encode()).close()
    assert refused(capsys, "invoke", JOB, __file__) == f"{__file__}: no image\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["invoke"], "no endpoint given"),
        (["invoke", "name"], "name: no image given"),
        (["invoke", "name", "/no/such.jpg"], "/no/such.jpg: no such file"),
        (["invoke", "name", "/"], "/: "),
        (["undeploy"], "no endpoint given"),
        (["undeploy", "a", "instance_type=b"], "instance_type=b: must be an override of"),
    ],
)
@pytest.mark.usefixtures("aws")
def test_a_wrong_command_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    err = refused(capsys, *arguments)
    assert line in err and err.count("\n") == 1


def test_a_transform_runs_with_the_model_of_the_job(
    job: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    s3 = [f"input=s3://{BUCKET}/in/", f"output=s3://{BUCKET}/out"]
    out = run(capsys, "transform", JOB, *s3, "name=answers", "--wait")
    assert "job answers created" in out and f"output: s3://{BUCKET}/out" in out
    (model,), (request,) = job.made("CreateModel"), job.made("CreateTransformJob")
    assert model["ModelName"] == request["ModelName"] == "answers"
    job.refuse("DescribeTrainingJob", "ValidationException", "Requested resource not found.")
    assert sagemaker.main(["status", "answers"]) == 0
    assert f"output: s3://{BUCKET}/out" in capsys.readouterr().out
    assert sagemaker.main(["status"]) == 0
    assert "Transform   Completed   answers" in capsys.readouterr().out


def test_a_refused_transform_leaves_no_model(job: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    job.refuse("CreateTransformJob", "ResourceLimitExceeded", "too many")
    err = refused(capsys, "transform", JOB, "input=s3://a/b", "output=s3://a/c")
    assert "too many" in err
    assert not left(job)
