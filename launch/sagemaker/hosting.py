"""Serve the model of a training job on SageMaker: ``make sagemaker-deploy``.

    make sagemaker-deploy ARGS="JOB [overrides]"       create an endpoint
    make sagemaker-deploy ARGS="undeploy ENDPOINT..."  delete it, its config and its model

The overrides are the keys of `make sagemaker-deploy` in docs/settings.md, and those of a launch.
``DRY_RUN=1`` prints the requests of a deployment.
"""

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError, WaiterError

from entry_point.config.compose import load_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.retired import retired
from entry_point.config.serve_config import ServerConfig, load_serve_config
from entry_point.job.program import UserError, asks_for_help
from launch.sagemaker.aws import (
    aws_client,
    open_session,
    print_request,
    refuse_dry_run,
    run_and_explain,
    session_unless_dry,
)
from launch.sagemaker.checks import is_gpu, require_sendable, warn_of_outputs
from launch.sagemaker.config import (
    DeployConfig,
    load_launch_config,
    one_name,
    split_names,
)
from launch.sagemaker.jobs import JobLog
from launch.sagemaker.s3 import require_objects
from launch.sagemaker.training import find_trained
from launch.sagemaker.training_request import drop_empty, merged

VARIANT = "AllTraffic"
# The system image with the newest driver, which runs containers with any older CUDA. SageMaker's
# own default has an older driver than the image's CUDA needs.
GPU_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"
STARTUP_S = 600
"""That a container may take to load the model."""
_DEFAULT_INSTANCES = {True: "ml.g6.xlarge", False: "ml.c7i.xlarge"}
# Where SageMaker puts the model.
_NEEDED = {"model_dir": "/opt/ml/model", "ML_ROOT": "/opt/ml"}
_LONGEST_NAME = 63
_POLL_S, _MOST_POLLS = 15, 240
_LAST_LINES = 10


def main(arguments: Sequence[str]) -> int:
    """Run one command; an error is one line on stderr and exit code 1."""
    if asks_for_help(arguments, __doc__):
        return 0
    command, *rest = arguments or [""]
    if command == "undeploy":
        return run_and_explain(lambda: _undeploy(rest))
    return run_and_explain(lambda: _deploy(rest if command == "deploy" else arguments))


# Deploy


def _deploy(arguments: Sequence[str]) -> int:
    """A dry run asks AWS nothing: it takes image, role and output from the launch config, or has
    placeholders for them, and does not know on what machine the job trained."""
    if arguments and (message := retired(f"sagemaker-deploy {arguments[0]}")):
        raise UserError(f"{arguments[0]}: {message}")
    names, overrides = split_names(arguments)
    job_name = one_name(names)
    launch, others = load_launch_config(overrides)
    config = load_config("deploy", DeployConfig, others)
    session = session_unless_dry()
    job = find_trained(job_name, launch, session)
    state = job.get("TrainingJobStatus", "Completed")  # a dry run does not know it
    if state != "Completed" and not config.unfinished:
        raise UserError(
            f"{job_name}: the job is {state}, so its model is unfinished; finish it in a new job: "
            f'make sagemaker-train ARGS="resume_from={job_name} ..."; or deploy it as it is: add '
            "unfinished=true"
        )
    instance_type = config.variant.get("InstanceType", config.instance_type)
    if session and instance_type and is_gpu(instance_type) and not _on_gpu(job):
        raise UserError(
            f"instance_type={instance_type}: must be a CPU type, as {job_name} trained on CPUs "
            "and its image is built for them"
        )
    _check_server(config.environment)
    config.name = config.name or job_name
    planned = requests(job, config, launch.job.tags)
    # All before the first is sent, which creates something.
    for operation, request in planned.items():
        require_sendable(request, operation)
    if session:
        model = job["ModelArtifacts"]["S3ModelArtifacts"]
        require_objects(aws_client(session, "s3"), {f"{job_name}: its model": model})
    _warn_of_outputs(planned["CreateEndpointConfig"], job)
    if session is None:
        print_request(planned)
        return 0
    _create(session, config.name, planned)
    _say(
        f"endpoint {config.name} serves; try it: aws sagemaker-runtime invoke-endpoint "
        f"--endpoint-name {config.name} --content-type image/jpeg --body fileb://IMAGE.jpg "
        "answer.json"
    )
    return 0


def requests(
    job: dict[str, Any], config: DeployConfig, tags: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """Operation -> request, in the order in which to send them.

    `job` is SageMaker's description of the training job.
    """
    unique = stamped(config.name or "", datetime.now(UTC))
    tagged = {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
    model = {
        "ModelName": unique,
        "ExecutionRoleArn": job["RoleArn"],
        "PrimaryContainer": {
            "Image": job["AlgorithmSpecification"]["TrainingImage"],
            "ModelDataUrl": job["ModelArtifacts"]["S3ModelArtifacts"],
            "Environment": config.environment,
        },
        "VpcConfig": job.get("VpcConfig"),
        "EnableNetworkIsolation": job.get("EnableNetworkIsolation") or None,
        **tagged,
    }
    variant = {"VariantName": VARIANT, "ModelName": unique, **_capacity(job, config)}
    endpoint_config = {
        "EndpointConfigName": unique,
        "ProductionVariants": [merged(variant, config.variant)],
        **tagged,
    }
    endpoint = {"EndpointName": config.name, "EndpointConfigName": unique, **tagged}
    return {
        "CreateModel": drop_empty(model),
        "CreateEndpointConfig": merged(drop_empty(endpoint_config), config.request),
        "CreateEndpoint": drop_empty(endpoint),
    }


def _check_server(environment: dict[str, str]) -> None:
    """Raise UserError for variables with which the server would not start, or not be reached."""
    try:
        config = load_serve_config([], environment)
    except ConfigError as error:
        raise UserError(*(f"environment: {line}" for line in str(error).splitlines())) from error
    default = ServerConfig()
    for key, value, needed in (
        ("serve.host", config.serve.host, default.host),
        ("serve.port", config.serve.port, default.port),
        ("model_dir", config.model_dir, None),
        ("ML_ROOT", environment.get("ML_ROOT"), None),
    ):
        if value not in (needed, _NEEDED.get(key)):
            raise UserError(
                f"environment: {key}={value}: SageMaker asks port {default.port} on all addresses, "
                f"and puts the model into {_NEEDED['model_dir']}; drop it"
            )


def _warn_of_outputs(endpoint_config: dict[str, Any], job: dict[str, Any]) -> None:
    answers = endpoint_config.get("AsyncInferenceConfig", {}).get("OutputConfig", {})
    captured = endpoint_config.get("DataCaptureConfig", {}).get("DestinationS3Uri")
    start = "request.AsyncInferenceConfig.OutputConfig"
    names = ("S3OutputPath", "S3FailurePath")
    places = {f"{start}.{name}": answers.get(name) for name in names}
    places["request.DataCaptureConfig.DestinationS3Uri"] = captured
    warn_of_outputs(places, job.get("OutputDataConfig", {}).get("S3OutputPath"))


def _capacity(job: dict[str, Any], config: DeployConfig) -> dict[str, Any]:
    if "ServerlessConfig" in config.variant:
        return {}
    instance_type = config.instance_type or _DEFAULT_INSTANCES[_on_gpu(job)]
    return {
        "InstanceType": instance_type,
        "InitialInstanceCount": 1,
        "ContainerStartupHealthCheckTimeoutInSeconds": STARTUP_S,
        **({"InferenceAmiVersion": GPU_AMI} if is_gpu(instance_type) else {}),
    }


def _on_gpu(job: dict[str, Any]) -> bool:
    """Returns whether the job trained on GPUs, and its image is thus built for them."""
    resources = job["ResourceConfig"]
    machines = [resources, *resources.get("InstanceGroups", [])]
    return any(is_gpu(each.get("InstanceType", "")) for each in machines)


def stamped(name: str, now: datetime) -> str:
    """Returns a new name for each deployment: the name, shortened if need be, and the time."""
    stamp = f"-{now:%y%m%d-%H%M%S}"
    return name[: _LONGEST_NAME - len(stamp)].rstrip("-") + stamp


def _create(session: Any, name: str, planned: dict[str, dict[str, Any]]) -> None:
    """Create the endpoint and wait until it serves; raises UserError if it does not.

    If a step is refused, nothing that this call created remains.
    """
    sagemaker = aws_client(session, "sagemaker")
    try:
        for operation, request in planned.items():
            getattr(sagemaker, xform_name(operation))(**request)
    except ClientError:
        _delete_own(sagemaker, planned["CreateEndpointConfig"]["EndpointConfigName"])
        raise
    _say(
        f"endpoint {name}: creating, takes 3 to 10 minutes; AWS bills it until "
        f'make sagemaker-deploy ARGS="undeploy {name}"'
    )
    try:
        sagemaker.get_waiter("endpoint_in_service").wait(
            EndpointName=name, WaiterConfig={"Delay": _POLL_S, "MaxAttempts": _MOST_POLLS}
        )
    except WaiterError as error:
        endpoint = sagemaker.describe_endpoint(EndpointName=name)
        if endpoint["EndpointStatus"] != "Failed":
            raise
        # What the container printed last often says more than SageMaker's reason.
        log = JobLog(aws_client(session, "logs"), VARIANT, f"/aws/sagemaker/Endpoints/{name}")
        sys.stderr.writelines(f"{text}\n" for _, text in log.new_lines()[-_LAST_LINES:])
        raise UserError(
            f"endpoint {name}: {endpoint.get('FailureReason', 'failed')}; "
            f'make sagemaker-deploy ARGS="undeploy {name}" deletes it'
        ) from error


# Undeploy


def _undeploy(arguments: Sequence[str]) -> int:
    refuse_dry_run("undeploy")
    if not arguments:
        raise UserError("no endpoint given; `make sagemaker ARGS=status` lists them")
    sagemaker = aws_client(open_session(), "sagemaker")
    for name in arguments:
        config = sagemaker.describe_endpoint(EndpointName=name)["EndpointConfigName"]
        sagemaker.delete_endpoint(EndpointName=name)
        if _delete_own(sagemaker, config):
            _say(f"endpoint {name}: deleted, with its config and model")
        else:
            _say(f"endpoint {name}: deleted; its config {config} stays, another tool made it")
    return 0


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
