"""Serve the model of a training job on SageMaker: ``make sagemaker-deploy``.

    make sagemaker-deploy ARGS="JOB [overrides]"           create or update an endpoint
    make sagemaker-deploy ARGS="invoke ENDPOINT IMAGE..."  send images, print the answers
    make sagemaker-deploy ARGS="undeploy ENDPOINT..."      delete it, its config and its model

The overrides are the keys of `make sagemaker-deploy` in docs/settings.md, and those of a launch.
``DRY_RUN=1`` prints the requests of a deployment.
"""

import mimetypes
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError, WaiterError

from entry_point.config.compose import compose_plain, parse_overrides
from entry_point.config.mistakes import check_config
from entry_point.contract.program import UserError, asks_for_help
from launch.sagemaker.aws import (
    aws_client,
    open_session,
    print_request,
    refuse_dry_run,
    run_and_explain,
    session_unless_dry,
)
from launch.sagemaker.checks import is_gpu, require_sendable
from launch.sagemaker.config import (
    DeployConfig,
    as_text,
    load_launch_config,
    one_name,
    split_names,
)
from launch.sagemaker.jobs import JobLog
from launch.sagemaker.training import find_trained
from launch.sagemaker.training_request import drop_empty, merged

VARIANT = "AllTraffic"
# The system image with the newest driver, which runs containers with any older CUDA. SageMaker's
# own default has an older driver than the image's CUDA needs.
GPU_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"
STARTUP_S = 600
"""That a container may take to load the model."""
_DEFAULT_INSTANCES = {True: "ml.g6.xlarge", False: "ml.c7i.xlarge"}
_LONGEST_NAME = 63
_POLL_S, _MOST_POLLS = 15, 240
_LAST_LINES = 10


def main(arguments: Sequence[str]) -> int:
    """Run one command; an error is one line on stderr and exit code 1."""
    if asks_for_help(arguments, __doc__):
        return 0
    commands = {"deploy": _deploy, "invoke": _invoke, "undeploy": _undeploy}
    if arguments and arguments[0] in commands:
        return run_and_explain(lambda: commands[arguments[0]](arguments[1:]))
    return run_and_explain(lambda: _deploy(arguments))


# Deploy


def _deploy(arguments: Sequence[str]) -> int:
    """A dry run asks AWS nothing: it takes image, role and output from the launch config."""
    names, overrides = split_names(arguments)
    job_name = one_name(names)
    launch, others = load_launch_config(overrides)
    plain = compose_plain("deploy", [as_text(each) for each in parse_overrides(others)])
    config = check_config(plain, DeployConfig)
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
    if instance_type and is_gpu(instance_type) and not _on_gpu(job):
        raise UserError(
            f"instance_type={instance_type}: must be a CPU type, as {job_name} trained on CPUs "
            "and its image is built for them"
        )
    config.name = config.name or job_name
    if session is None:
        planned = requests(job, config, launch.job.tags)
        _require_sendable(planned)
        print_request(planned)
        return 0
    _create_or_update(session, job, config, launch.job.tags)
    name = config.name
    _say(f'endpoint {name} serves; try it: make sagemaker-deploy ARGS="invoke {name} IMAGE.jpg"')
    return 0


def requests(
    job: dict[str, Any], config: DeployConfig, tags: dict[str, str], *, exists: bool = False
) -> dict[str, dict[str, Any]]:
    """Operation -> request, in the order in which to send them.

    `job` is SageMaker's description of the training job. `exists`: an endpoint of that name is
    there, and is updated.
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
    served = {"EndpointName": config.name, "EndpointConfigName": unique}
    last = {"UpdateEndpoint": served} if exists else {"CreateEndpoint": served | tagged}
    return {
        "CreateModel": drop_empty(model),
        "CreateEndpointConfig": merged(drop_empty(endpoint_config), config.request),
        **drop_empty(last),
    }


def _require_sendable(requests: dict[str, dict[str, Any]]) -> None:
    """Check all before the first is sent, which creates something. Raises UserError."""
    for operation, request in requests.items():
        require_sendable(request, operation)


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
    """Whether the job trained on GPUs, and its image is thus built for them."""
    resources = job["ResourceConfig"]
    machines = [resources, *resources.get("InstanceGroups", [])]
    return any(is_gpu(each.get("InstanceType", "")) for each in machines)


def stamped(name: str, now: datetime) -> str:
    """A new name for each deployment: the name, shortened if need be, and the time."""
    stamp = f"-{now:%y%m%d-%H%M%S}"
    return name[: _LONGEST_NAME - len(stamp)].rstrip("-") + stamp


def _create_or_update(
    session: Any, job: dict[str, Any], config: DeployConfig, tags: dict[str, str]
) -> None:
    """Create or update the endpoint and wait until it serves.

    If a step is refused, nothing that this call created remains. Raises UserError.
    """
    name, sagemaker = config.name or "", aws_client(session, "sagemaker")
    earlier = _describe(sagemaker, name)
    if earlier and earlier["EndpointStatus"] != "InService":
        raise UserError(
            f"endpoint {name}: is {earlier['EndpointStatus']}; wait, or delete it: "
            f'make sagemaker-deploy ARGS="undeploy {name}"'
        )
    to_send = requests(job, config, tags, exists=earlier is not None)
    _require_sendable(to_send)
    own = to_send["CreateEndpointConfig"]["EndpointConfigName"]
    try:
        for operation, request in to_send.items():
            getattr(sagemaker, xform_name(operation))(**request)
    except ClientError:
        _delete_own(sagemaker, own)
        raise
    _say(
        f"endpoint {name}: {'updating' if earlier else 'creating'}, takes 3 to 10 minutes; AWS "
        f'bills it until make sagemaker-deploy ARGS="undeploy {name}"'
    )
    _wait(session, sagemaker, name, own)
    if earlier:
        _delete_own(sagemaker, earlier["EndpointConfigName"])


def _wait(session: Any, sagemaker: Any, name: str, config: str) -> None:
    """Wait until the endpoint serves with `config`; raises UserError if it does not."""
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
    served = sagemaker.describe_endpoint(EndpointName=name)
    if served["EndpointConfigName"] != config:
        _delete_own(sagemaker, config)
        raise UserError(
            f"endpoint {name}: the update failed, and the earlier model serves: "
            f"{served.get('FailureReason', 'no reason given')}"
        )


# Invoke and undeploy


def _invoke(arguments: Sequence[str]) -> int:
    session, (name, *files) = _session_and_names(arguments)
    if not files:
        raise UserError(f"{name}: no image given; add the paths of JPEG or other image files")
    if missing := next((file for file in files if not Path(file).is_file()), None):
        raise UserError(f"{missing}: no such file")
    runtime = aws_client(session, "sagemaker-runtime")
    for path in map(Path, files):
        kind = mimetypes.guess_type(path)[0] or "application/x-image"
        request = {"EndpointName": name, "ContentType": kind, "Accept": "application/json"}
        try:
            answer = runtime.invoke_endpoint(**request, Body=path.read_bytes())
        except runtime.exceptions.ModelError as error:
            raise UserError(f"{path}: {error.response['OriginalMessage']}") from error
        _say(f"{path}\t{answer['Body'].read().decode('utf-8', 'backslashreplace').strip()}")
    return 0


def _undeploy(arguments: Sequence[str]) -> int:
    refuse_dry_run("undeploy")
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
    if not arguments:
        raise UserError("no endpoint given; `make sagemaker ARGS=status` lists them")
    return open_session(), list(arguments)


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
