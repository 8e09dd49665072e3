"""Serve the model of a training job on SageMaker: ``make sagemaker-deploy``.

    make sagemaker-deploy ARGS="JOB [overrides]"           create or update an endpoint
    make sagemaker-deploy ARGS="invoke ENDPOINT IMAGE..."  send images, print the answers
    make sagemaker-deploy ARGS="undeploy ENDPOINT..."      delete it, its config and its model

The overrides are the keys of `make sagemaker-deploy` in docs/settings.md, and those of a launch,
such as ``job.region=eu-west-1``. ``DRY_RUN=1`` prints the requests of a deployment.
"""

from __future__ import annotations

import mimetypes
import re
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from botocore import xform_name
from botocore.exceptions import ClientError, WaiterError

from entry_point.config.compose import check_config, compose_plain, parse_overrides
from entry_point.contract.program import asks_for_help
from launch.command_line import LaunchError
from launch.sagemaker.aws import (
    aws_client,
    is_dry_run,
    open_session,
    print_request,
    run_and_explain,
)
from launch.sagemaker.checks import is_gpu
from launch.sagemaker.config import (
    DeployConfig,
    LaunchConfig,
    as_text,
    load_launch_config,
    load_names,
    split_names,
)
from launch.sagemaker.jobs import JobLog, find_job
from launch.sagemaker.s3 import split_s3
from launch.sagemaker.training_request import merged

VARIANT = "AllTraffic"
# The system image with the newest driver, which runs containers with any older CUDA. SageMaker's
# own default has an older driver than the image's CUDA needs.
GPU_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"
STARTUP_S = 600
"""That a container may take to load the model."""
# A queued request may have 1 GB, see docs/serving.md.
LARGE_BODIES = {"SERVE_OVERRIDES": "serve.max_payload_mb=1024"}
_DEFAULT_INSTANCES = {True: "ml.g6.xlarge", False: "ml.c7i.xlarge"}
_LONGEST_NAME = 63
_POLL_S, _MOST_POLLS = 15, 240
_LAST_LINES = 10
_PATIENCE_S = 900.0


@dataclass(frozen=True)
class TrainedModel:
    """The model of a training job, with what that job already had the right to use."""

    job: str
    image: str | None
    artifacts: str | None
    """S3 URI of model.tar.gz."""
    role: str | None
    on_gpu: bool
    """Whether the job trained on GPUs, and its image is thus built for them."""
    vpc: dict[str, Any] = field(default_factory=dict)
    is_isolated: bool = False

    @classmethod
    def of(cls, description: dict[str, Any]) -> TrainedModel:
        """The model of a job, from SageMaker's description; raises LaunchError if it has none."""
        job, resources = description["TrainingJobName"], description["ResourceConfig"]
        artifacts = description.get("ModelArtifacts", {}).get("S3ModelArtifacts")
        if not artifacts:
            raise LaunchError(f"{job}: has no model, the job is {description['TrainingJobStatus']}")
        machines = [resources, *resources.get("InstanceGroups", [])]
        return cls(
            job=job,
            image=description["AlgorithmSpecification"]["TrainingImage"],
            artifacts=artifacts,
            role=description["RoleArn"],
            on_gpu=any(is_gpu(each.get("InstanceType", "")) for each in machines),
            vpc=description.get("VpcConfig", {}),
            is_isolated=description.get("EnableNetworkIsolation", False),
        )

    @classmethod
    def planned(cls, job: str, config: LaunchConfig) -> TrainedModel:
        """The model that a job with the launch config leaves, as far as it is known without AWS."""
        settings = config.job
        output = settings.output and settings.output.rstrip("/")
        vpc = {"SecurityGroupIds": settings.security_groups, "Subnets": settings.subnets}
        return cls(
            job=job,
            image=config.target.image,
            artifacts=output and f"{output}/{job}/output/model.tar.gz",
            role=settings.role,
            on_gpu=config.target.device == "gpu",
            vpc=vpc if settings.subnets else {},
            is_isolated=settings.network_isolation,
        )


@dataclass(frozen=True)
class Deployment:
    """What the command line asks for, and the model of the job that it names."""

    model: TrainedModel
    config: DeployConfig
    tags: dict[str, str]
    session: Any
    """A boto3 session; None in a dry run."""

    @property
    def name(self) -> str:
        return self.config.name or self.model.job

    def requests(self, *, exists: bool = False) -> dict[str, dict[str, Any]]:
        """Operation -> request, in the order in which to send them.

        `exists`: an endpoint of that name is there, and is updated.
        """
        model, config = self.model, self.config
        unique = stamped(self.name, datetime.now(UTC))
        tags = _given(Tags=[{"Key": key, "Value": value} for key, value in self.tags.items()])
        environment = (LARGE_BODIES if config.async_output else {}) | config.environment
        container = {"Image": model.image, "ModelDataUrl": model.artifacts}
        served = {"EndpointName": self.name, "EndpointConfigName": unique}
        return {
            "CreateModel": {
                "ModelName": unique,
                "ExecutionRoleArn": model.role,
                "PrimaryContainer": container | _given(Environment=environment),
                **_given(VpcConfig=model.vpc, EnableNetworkIsolation=model.is_isolated),
                **tags,
            },
            "CreateEndpointConfig": {
                "EndpointConfigName": unique,
                "ProductionVariants": [
                    {"VariantName": VARIANT, "ModelName": unique}
                    | merged(self._capacity(), config.variant)
                ],
                **_given(AsyncInferenceConfig=self._queue()),
                **tags,
            },
            **({"UpdateEndpoint": served} if exists else {"CreateEndpoint": served | tags}),
        }

    def _capacity(self) -> dict[str, Any]:
        config = self.config
        if config.serverless:
            return {"ServerlessConfig": {"MemorySizeInMB": 4096, "MaxConcurrency": 10}}
        instance_type = config.instance_type or _DEFAULT_INSTANCES[self.model.on_gpu]
        return {
            "InstanceType": instance_type,
            "InitialInstanceCount": config.instance_count,
            "ContainerStartupHealthCheckTimeoutInSeconds": STARTUP_S,
            **({"InferenceAmiVersion": GPU_AMI} if is_gpu(instance_type) else {}),
        }

    def _queue(self) -> dict[str, Any]:
        output = self.config.async_output
        return {"OutputConfig": {"S3OutputPath": output.rstrip("/")}} if output else {}


def _given(**members: Any) -> dict[str, Any]:
    """The members that have a value."""
    return {name: value for name, value in members.items() if value}


def stamped(name: str, now: datetime) -> str:
    """A name of its own for each deployment: the name, shortened if need be, and the time."""
    stamp = f"-{now:%y%m%d-%H%M%S}"
    return name[: _LONGEST_NAME - len(stamp)].rstrip("-") + stamp


def main(arguments: Sequence[str]) -> int:
    """Run one command; an error is one line on stderr and exit code 1."""
    if asks_for_help(arguments, __doc__):
        return 0
    commands = {"deploy": _deploy, "invoke": _invoke, "undeploy": _undeploy}
    if arguments and arguments[0] in commands:
        return run_and_explain(lambda: commands[arguments[0]](arguments[1:]))
    return run_and_explain(lambda: _deploy(arguments))


def load(arguments: Sequence[str]) -> Deployment:
    """Read `JOB [overrides]`; raises LaunchError, ConfigError.

    A dry run asks AWS nothing: it takes image, role and output from the launch config.
    """
    # `async` is a keyword of Python and cannot be the name of a field.
    arguments = [re.sub("^async=", "async_output=", text) for text in arguments]
    jobs, overrides = split_names(arguments)
    if len(jobs) != 1:
        raise LaunchError(
            f"{' '.join(jobs) or 'no job given'}: must be the name of one training job; "
            "`make sagemaker ARGS=status` lists the latest"
        )
    launch, others = load_launch_config(overrides)
    plain = compose_plain("deploy", [as_text(each) for each in parse_overrides(others)])
    config = check_config(plain, DeployConfig)
    session = None if is_dry_run() else open_session(launch.job.region)
    model = _trained(jobs[0], session) if session else TrainedModel.planned(jobs[0], launch)
    _check(model, config)
    return Deployment(model, config, launch.job.tags, session)


def _trained(name: str, session: Any) -> TrainedModel:
    job, description = find_job(session, name)
    if job.kind != "Training":
        raise LaunchError(f"{name}: is a {job.kind} job, and only training jobs leave a model")
    return TrainedModel.of(description)


def _check(model: TrainedModel, config: DeployConfig) -> None:
    """Raise LaunchError for what AWS would accept, and for what a dry run needs to know."""
    known = {"target.image": model.image, "job.role": model.role, "job.output": model.artifacts}
    if missing := [key for key, value in known.items() if not value]:
        raise LaunchError(
            f"{missing[0]} is missing; a dry run does not ask AWS for the job: set the key in "
            "configs/launch.yaml or add it"
        )
    if config.instance_type and is_gpu(config.instance_type) and not model.on_gpu:
        raise LaunchError(
            f"instance_type={config.instance_type}: must be a CPU type, as {model.job} trained on "
            "CPUs and its image is built for them"
        )
    if config.serverless and (config.instance_type or config.instance_count != 1):
        raise LaunchError("serverless=true: has no instances; drop instance_type, instance_count")


def _deploy(arguments: Sequence[str]) -> int:
    deployment = load(arguments)
    if is_dry_run():
        print_request(deployment.requests())
        return 0
    deploy(deployment)
    name = deployment.name
    _say(f'endpoint {name} serves; try it: make sagemaker-deploy ARGS="invoke {name} IMAGE.jpg"')
    return 0


def deploy(deployment: Deployment) -> None:
    """Create or update the endpoint and wait until it serves.

    If a step is refused, nothing that this call created remains. Raises LaunchError.
    """
    session, name = deployment.session, deployment.name
    sagemaker = aws_client(session, "sagemaker")
    earlier = _describe(sagemaker, name)
    if earlier and earlier["EndpointStatus"] != "InService":
        raise LaunchError(
            f"endpoint {name}: is {earlier['EndpointStatus']}; wait, or delete it: "
            f'make sagemaker-deploy ARGS="undeploy {name}"'
        )
    requests = deployment.requests(exists=earlier is not None)
    config = requests["CreateEndpointConfig"]["EndpointConfigName"]
    try:
        for operation, request in requests.items():
            getattr(sagemaker, xform_name(operation))(**request)
    except ClientError:
        _delete_own(sagemaker, config)
        raise
    _say(
        f"endpoint {name}: {'updating' if earlier else 'creating'}, takes 3 to 10 minutes; AWS "
        f'bills it until make sagemaker-deploy ARGS="undeploy {name}"'
    )
    _wait(session, sagemaker, name, config)
    if earlier:
        _delete_own(sagemaker, earlier["EndpointConfigName"])


def _wait(session: Any, sagemaker: Any, name: str, config: str) -> None:
    """Wait until the endpoint serves with `config`; raises LaunchError if it does not."""
    try:
        sagemaker.get_waiter("endpoint_in_service").wait(
            EndpointName=name, WaiterConfig={"Delay": _POLL_S, "MaxAttempts": _MOST_POLLS}
        )
    except KeyboardInterrupt:
        _say(f"endpoint {name}: is still starting; `make sagemaker ARGS=status` shows its state")
        raise
    except WaiterError as error:
        _raise_failure(session, sagemaker.describe_endpoint(EndpointName=name), error)
    served = sagemaker.describe_endpoint(EndpointName=name)
    if served["EndpointConfigName"] != config:
        _delete_own(sagemaker, config)
        raise LaunchError(
            f"endpoint {name}: the update failed, and the earlier model serves: "
            f"{served.get('FailureReason', 'no reason given')}"
        )


def _raise_failure(session: Any, endpoint: dict[str, Any], error: WaiterError) -> NoReturn:
    if endpoint["EndpointStatus"] != "Failed":
        raise error
    name = endpoint["EndpointName"]
    # What the container printed last often says more than SageMaker's reason.
    log = JobLog(aws_client(session, "logs"), VARIANT, f"/aws/sagemaker/Endpoints/{name}")
    sys.stderr.writelines(f"{text}\n" for _, text in log.new_lines()[-_LAST_LINES:])
    raise LaunchError(
        f"endpoint {name}: {endpoint.get('FailureReason', 'failed')}; "
        f'make sagemaker-deploy ARGS="undeploy {name}" deletes it'
    ) from error


def _invoke(arguments: Sequence[str]) -> int:
    session, (name, *files) = _session_and_names(arguments)
    if not files:
        raise LaunchError(f"{name}: no image given; add the paths of JPEG or other image files")
    if missing := next((file for file in files if not Path(file).is_file()), None):
        raise LaunchError(f"{missing}: no such file")
    endpoint = aws_client(session, "sagemaker").describe_endpoint(EndpointName=name)
    queue = endpoint.get("AsyncInferenceConfig", {}).get("OutputConfig", {}).get("S3OutputPath")
    runtime = aws_client(session, "sagemaker-runtime")
    s3 = aws_client(session, "s3") if queue else None
    for path in map(Path, files):
        kind = mimetypes.guess_type(path)[0] or "application/x-image"
        request = {"EndpointName": name, "ContentType": kind, "Accept": "application/json"}
        if s3:
            request["InputLocation"] = _send(s3, path, queue)
            answer = _queued_answer(s3, path, runtime.invoke_endpoint_async(**request))
        else:
            answer = _answer(runtime, path, request)
        _say(f"{path}\t{answer}")
    return 0


def _answer(runtime: Any, path: Path, request: dict[str, str]) -> str:
    try:
        answer = runtime.invoke_endpoint(**request, Body=path.read_bytes())
    except ClientError as error:
        if error.response["Error"]["Code"] != "ModelError":
            raise
        raise LaunchError(f"{path}: {error.response['OriginalMessage']}") from error
    return _text(answer["Body"])


def _send(s3: Any, path: Path, output: str) -> str:
    """Upload the file below the endpoint's output; returns its URI."""
    bucket, prefix = split_s3(output, "S3OutputPath")
    key = f"{prefix}/input/{uuid.uuid4()}-{path.name}".lstrip("/")
    s3.upload_file(str(path), bucket, key)
    return f"s3://{bucket}/{key}"


def _queued_answer(s3: Any, path: Path, queued: dict[str, Any]) -> str:
    """Wait for the answer, which the endpoint writes to S3; raises LaunchError for a refusal."""
    answer_uri, failure_uri = queued["OutputLocation"], queued.get("FailureLocation")
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if (answer := _object(s3, answer_uri)) is not None:
            return answer
        if failure_uri and (reason := _object(s3, failure_uri)) is not None:
            raise LaunchError(f"{path}: {reason}")
        time.sleep(1)
    raise LaunchError(f"{path}: no answer in {_PATIENCE_S:.0f} s; it will be at {answer_uri}")


def _object(s3: Any, uri: str) -> str | None:
    bucket, key = split_s3(uri, "OutputLocation")
    try:
        return _text(s3.get_object(Bucket=bucket, Key=key)["Body"])
    except s3.exceptions.NoSuchKey:
        return None


def _text(body: Any) -> str:
    text: str = body.read().decode("utf-8", "backslashreplace").strip()
    return text


def _undeploy(arguments: Sequence[str]) -> int:
    session, names = _session_and_names(arguments)
    sagemaker = aws_client(session, "sagemaker")
    for name in names:
        config = sagemaker.describe_endpoint(EndpointName=name)["EndpointConfigName"]
        sagemaker.delete_endpoint(EndpointName=name)
        if _delete_own(sagemaker, config):
            _say(f"endpoint {name}: deleted, with its config and model")
        else:
            _say(f"endpoint {name}: deleted; its config {config} stays, another tool made it")
    return 0


def _session_and_names(arguments: Sequence[str]) -> tuple[Any, list[str]]:
    names, config = load_names(arguments)
    if not names:
        raise LaunchError("no endpoint given; `make sagemaker ARGS=status` lists them")
    return open_session(config.job.region), names


def latest(session: Any, count: int = 10) -> list[str]:
    """One line for each of the latest endpoints."""
    listed = aws_client(session, "sagemaker").list_endpoints(
        SortBy="CreationTime", SortOrder="Descending", MaxResults=count
    )
    return [_line(endpoint) for endpoint in listed["Endpoints"]]


def summary(session: Any, name: str) -> list[str]:
    """A line on the endpoint of that name; none if there is none."""
    endpoint = _describe(aws_client(session, "sagemaker"), name)
    return [_line(endpoint)] if endpoint else []


def _line(endpoint: dict[str, Any]) -> str:
    created, state = endpoint["CreationTime"], endpoint["EndpointStatus"]
    return f"{created:%Y-%m-%d %H:%M}  Endpoint    {state:<10}  {endpoint['EndpointName']}"


def _describe(sagemaker: Any, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = sagemaker.describe_endpoint(EndpointName=name)
    except ClientError as error:
        # SageMaker reports an unknown endpoint as a ValidationException.
        if not error.response["Error"]["Code"].startswith("Validation"):
            raise
        return None
    return found


def _delete_own(sagemaker: Any, config: str) -> bool:
    """Delete an endpoint's config and the model of the same name, as far as they exist.

    False, without deleting, if `stamped` did not make the name: another tool made the config.
    """
    if not re.search(r"-\d{6}-\d{6}$", config):
        return False
    for delete in (
        lambda: sagemaker.delete_endpoint_config(EndpointConfigName=config),
        lambda: sagemaker.delete_model(ModelName=config),
    ):
        try:
            delete()
        except ClientError as error:
            if not error.response["Error"]["Code"].startswith("Validation"):
                raise
    return True


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
