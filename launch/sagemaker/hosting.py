"""Serve the model of a training job on SageMaker: ``make sagemaker-deploy``.

    make sagemaker-deploy ARGS="JOB [overrides]"       create an endpoint
    make sagemaker-deploy ARGS="undeploy ENDPOINT..."  delete it, its config and its model

The overrides are the keys of `make sagemaker-deploy` in docs/settings.md, and job.tags.
``DRY_RUN=1`` prints the requests of a deployment.
"""

import re
import sys
from collections.abc import Sequence
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError, WaiterError

from entry_point.config.compose import load_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.retired import retired
from entry_point.config.serve_config import ServerConfig, load_serve_config
from entry_point.job.program import UserError, asks_for_help
from launch import say
from launch.sagemaker.aws import (
    aws_client,
    creating,
    explain,
    open_session,
    print_request,
    refuse_dry_run,
    run_and_explain,
    session_unless_dry,
)
from launch.sagemaker.checks import member_of, warn_of_outputs
from launch.sagemaker.config import DeployConfig, LaunchConfig, load_launch_config, split_name
from launch.sagemaker.jobs import Log, find_trained
from launch.sagemaker.s3 import require_objects
from launch.sagemaker.training_request import (
    drop_empty,
    is_gpu,
    machines,
    merged,
    on_gpu,
    require_types,
    stamped,
)

VARIANT = "AllTraffic"
# The system image with the newest driver, which runs containers with any older CUDA. SageMaker's
# own default has an older driver than the image's CUDA needs.
GPU_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"
STARTUP_S = 600
"""Seconds that a container may take to load the model."""
_POLL_S, _MOST_POLLS = 15, 240
_LAST_LINES = 10
# Settings of a launch that an endpoint has; a dry run takes more from them, see `_deploy`.
_TAGS = ("job.tags",)
_IN_DRY_RUN = (*_TAGS, "target.image", "job.role", "job.output", "job.network")
# Members of CreateEndpointConfig that hold S3 prefixes to write to.
_OUTPUTS = (
    *(f"AsyncInferenceConfig.OutputConfig.{name}" for name in ("S3OutputPath", "S3FailurePath")),
    "DataCaptureConfig.DestinationS3Uri",
)


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
    name, overrides = split_name(arguments)
    launch, others = load_launch_config(overrides, DeployConfig)
    config = load_config("deploy", DeployConfig, others)
    session = session_unless_dry()
    _refuse_ignored(overrides, session)
    job = find_trained(session, name) if session else _as_launched(name, launch)
    endpoint = config.name or name
    planned = requests(job, endpoint, config, launch.job.tags)
    _require_valid(job, config, planned, session)
    if session is None:
        print_request(planned)
        return 0
    _create(session, endpoint, planned)
    call, image = "invoke-endpoint", "--body fileb://IMAGE.jpg answer.json"
    if "AsyncInferenceConfig" in planned["CreateEndpointConfig"]:
        call, image = "invoke-endpoint-async", "--input-location s3://BUCKET/IMAGE.jpg"
    say(
        f"endpoint {endpoint} serves; try it: aws sagemaker-runtime {call} "
        f"--endpoint-name {endpoint} --content-type image/jpeg {image}"
    )
    return 0


def _refuse_ignored(overrides: Sequence[str], session: Any) -> None:
    """Raise UserError for a setting of a launch that would change nothing of the endpoint."""
    used = _TAGS if session else _IN_DRY_RUN
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if re.match(r"(target|job|resume_from)\b", key) and not key.startswith(used):
            raise UserError(
                f"{override}: the endpoint has what the job has; set name, instance_type, variant, "
                "request, environment or job.tags instead, or drop it"
            )


def _as_launched(name: str, config: LaunchConfig) -> dict[str, Any]:
    """Returns what SageMaker would describe of a job of this config that has completed."""
    output = (config.job.output or f"s3://OUTPUT-OF-{name}").rstrip("/")
    return {
        "TrainingJobName": name,
        "TrainingJobStatus": "Completed",
        "AlgorithmSpecification": {"TrainingImage": config.target.image or f"IMAGE-OF-{name}"},
        "RoleArn": config.job.role or f"arn:aws:iam::000000000000:role/ROLE-OF-{name}",
        "ResourceConfig": machines(config),
        "OutputDataConfig": {"S3OutputPath": output},
        "ModelArtifacts": {"S3ModelArtifacts": f"{output}/{name}/output/model.tar.gz"},
        **config.job.network,
    }


def requests(
    job: dict[str, Any], endpoint: str, config: DeployConfig, tags: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """Returns the requests by operation, in the order in which to send them.

    `job` is SageMaker's description of the training job.
    """
    unique = stamped(endpoint)
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
    }
    variant: dict[str, Any] = {"VariantName": VARIANT, "ModelName": unique}
    if "ServerlessConfig" not in config.variant:
        kind = config.variant.get("InstanceType") or config.instance_type
        kind = kind or ("ml.g6.xlarge" if on_gpu(job["ResourceConfig"]) else "ml.c7i.xlarge")
        variant |= {
            "InstanceType": kind,
            "InitialInstanceCount": 1,
            "ContainerStartupHealthCheckTimeoutInSeconds": STARTUP_S,
            "InferenceAmiVersion": GPU_AMI if is_gpu(kind) else None,
        }
    variants = [merged(drop_empty(variant), config.variant)]
    planned = {
        "CreateModel": model,
        "CreateEndpointConfig": {"EndpointConfigName": unique, "ProductionVariants": variants},
        "CreateEndpoint": {"EndpointName": endpoint, "EndpointConfigName": unique},
    }
    tagged = {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
    planned = {name: drop_empty({**each, **tagged}) for name, each in planned.items()}
    return planned | {
        "CreateEndpointConfig": merged(planned["CreateEndpointConfig"], config.request)
    }


def _require_valid(
    job: dict[str, Any], config: DeployConfig, planned: dict[str, dict[str, Any]], session: Any
) -> None:
    """Raise UserError before the first request is sent, which creates something."""
    name, state = job["TrainingJobName"], job["TrainingJobStatus"]
    if state != "Completed" and not config.unfinished:
        raise UserError(
            f"{name}: the job is {state}, so its model is unfinished; finish it in a new job: "
            f'make sagemaker-train ARGS="resume_from={name} ..."; or deploy it as it is: add '
            "unfinished=true"
        )
    if config.instance_type and "ServerlessConfig" in config.variant:
        raise UserError(
            f"instance_type={config.instance_type}: an endpoint with variant.ServerlessConfig has "
            "no instances; drop one of them"
        )
    for operation, request in planned.items():
        require_types(request, operation)
    endpoint_config = planned["CreateEndpointConfig"]
    kind = endpoint_config["ProductionVariants"][0].get("InstanceType", "")
    if session and is_gpu(kind) and not on_gpu(job["ResourceConfig"]):
        raise UserError(
            f"instance_type={kind}: must be a CPU type, as {name} trained on CPUs and its image is "
            "built for them"
        )
    _require_server(config.environment)
    if session:
        model = job["ModelArtifacts"]["S3ModelArtifacts"]
        require_objects(aws_client(session, "s3"), model, f"{name}: its model")
    outputs = {f"request.{member}": member_of(endpoint_config, member) for member in _OUTPUTS}
    warn_of_outputs(outputs, job["RoleArn"], member_of(job, "OutputDataConfig.S3OutputPath"))


def _require_server(environment: dict[str, str]) -> None:
    """Raise UserError for variables with which the server would not start, or not be reached."""
    try:
        config = load_serve_config([], environment)
    except ConfigError as error:
        raise UserError(*(f"environment: {line}" for line in str(error).splitlines())) from error
    default = ServerConfig()
    for key, value, needed in (
        ("serve.host", config.serve.host, default.host),
        ("serve.port", config.serve.port, default.port),
        ("model_dir", config.model_dir or "/opt/ml/model", "/opt/ml/model"),
        ("ML_ROOT", environment.get("ML_ROOT", "/opt/ml"), "/opt/ml"),
    ):
        if value != needed:
            raise UserError(
                f"environment: {key}={value}: SageMaker asks port {default.port} on all addresses, "
                "and puts the model into /opt/ml/model; drop it"
            )


def _create(session: Any, name: str, planned: dict[str, dict[str, Any]]) -> None:
    """Create the endpoint and wait until it serves; raises UserError if it does not.

    If a step is refused, nothing that this call created remains.
    """
    sagemaker = aws_client(session, "sagemaker")
    config = planned["CreateEndpointConfig"]["EndpointConfigName"]
    try:
        with creating(f"endpoint {name}", "make sagemaker ARGS=status"):
            for operation, request in planned.items():
                getattr(sagemaker, xform_name(operation))(**request)
    except ClientError:
        # If an answer is lost, AWS does what it was asked, and refuses the repeated request.
        if _config_of(sagemaker, name) != config:
            _delete_own(sagemaker, config)
            raise
    undeploy = f'make sagemaker-deploy ARGS="undeploy {name}"'
    say(f"endpoint {name}: creating, takes 3 to 10 minutes; AWS bills it until {undeploy}")
    try:
        sagemaker.get_waiter("endpoint_in_service").wait(
            EndpointName=name, WaiterConfig={"Delay": _POLL_S, "MaxAttempts": _MOST_POLLS}
        )
    except WaiterError as error:
        endpoint = sagemaker.describe_endpoint(EndpointName=name)
        if endpoint["EndpointStatus"] != "Failed":
            raise
        # The container's last lines often explain more than SageMaker's reason.
        log = Log(aws_client(session, "logs"), f"/aws/sagemaker/Endpoints/{name}", VARIANT)
        sys.stderr.writelines(f"{line}\n" for line in [*log.new_lines()][-_LAST_LINES:])
        reason = endpoint.get("FailureReason", "failed")
        raise UserError(f"endpoint {name}: {reason}; {undeploy} deletes it") from error


def _config_of(sagemaker: Any, endpoint: str) -> str | None:
    """Returns the name of an endpoint's config; None if there is no such endpoint."""
    try:
        name: str = sagemaker.describe_endpoint(EndpointName=endpoint)["EndpointConfigName"]
    except ClientError as error:
        if not error.response["Error"]["Code"].startswith("Validation"):
            raise
        return None
    return name


# Undeploy


def _undeploy(arguments: Sequence[str]) -> int:
    refuse_dry_run("undeploy")
    if not arguments:
        raise UserError("no endpoint given; `make sagemaker ARGS=status` lists them")
    sagemaker, failed = aws_client(open_session(), "sagemaker"), list[str]()
    for name in arguments:
        done = ""
        try:
            config = sagemaker.describe_endpoint(EndpointName=name)["EndpointConfigName"]
            sagemaker.delete_endpoint(EndpointName=name)
            done = f"deleted; its config {config} may stay: "
            users = _endpoints_with(sagemaker, config, besides=name)
            is_own = not users and _delete_own(sagemaker, config)
        except ClientError as error:  # the others are billed, too
            failed.append(f"endpoint {name}: {done}{explain(error)}")
            continue
        why = f"{', '.join(users)} uses it" if users else "another tool made it"
        rest = f"; its config {config} stays, {why}"
        say(f"endpoint {name}: deleted{', with its config and model' if is_own else rest}")
    if failed:
        raise UserError(*failed)
    return 0


def _endpoints_with(sagemaker: Any, config: str, *, besides: str) -> list[str]:
    """Returns the other endpoints that have been updated to a config: they need it, and its model,
    for each new instance."""
    names = sagemaker.get_paginator("list_endpoints").paginate().search("Endpoints[].EndpointName")
    return [each for each in names if each != besides and _config_of(sagemaker, each) == config]


def _delete_own(sagemaker: Any, config: str) -> bool:
    """Delete an endpoint's config and the model of the same name, as far as they exist.

    False, without deleting, if `stamped` did not make the name: another tool made the config.
    """
    if not re.search(r"-\d{6}-\d{6}(-\d{3})?$", config):
        return False
    for delete, members in (
        (sagemaker.delete_endpoint_config, {"EndpointConfigName": config}),
        (sagemaker.delete_model, {"ModelName": config}),
    ):
        try:
            delete(**members)
        except ClientError as error:
            if not error.response["Error"]["Code"].startswith("Validation"):
                raise
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
