"""An endpoint: created or updated from a training job, listed, deleted."""

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError, WaiterError

from launch.aws.cost import PriceUnknownError, hourly_cost
from launch.aws.hosting.deployment import Deployment
from launch.command_line import LaunchError
from launch.request.hosting import endpoint_request
from launch.request.hosting.hosting_config import DeployConfig
from launch.request.hosting.trained_model import is_stamped
from launch.sagemaker.aws import aws_client
from launch.sagemaker.jobs import JobLog

_POLL_S, _MOST_POLLS = 15, 240
_LAST_LINES = 10
Requests = dict[str, dict[str, Any]]


def checked_requests(deployment: Deployment[DeployConfig], *, exists: bool = False) -> Requests:
    """Operation -> request; raises LaunchError with one line for each problem."""
    model, config, launch = deployment.model, deployment.config, deployment.launch
    requests = endpoint_request.build(
        model, config, launch.job.tags, datetime.now(UTC), exists=exists
    )
    endpoint_request.check(requests, model, config, deployment.region)
    return requests


def deploy(deployment: Deployment[DeployConfig]) -> str:
    """Create or update the endpoint and wait until it serves; returns its name.

    If a step fails, nothing that this call created remains. Raises LaunchError.
    """
    # Imported here because a dry run does not need boto3, and that takes long to load.
    from launch.aws.ecr import require_image

    session, config = deployment.session, deployment.config
    sagemaker = aws_client(session, "sagemaker")
    name = config.name or deployment.model.job
    earlier = _describe(sagemaker, name)
    if earlier and earlier["EndpointStatus"] != "InService":
        raise LaunchError(
            f"endpoint {name}: is {earlier['EndpointStatus']}; wait, or delete it: "
            f"make sagemaker-undeploy ARGS={name}"
        )
    requests = checked_requests(deployment, exists=earlier is not None)
    require_image(deployment.model.target, session)
    (variant,) = requests["CreateEndpointConfig"]["ProductionVariants"]
    _say(f"cost: {_cost(variant, session)}, until make sagemaker-undeploy ARGS={name}")
    _send(sagemaker, requests)
    _say(f"endpoint {name}: {'updating' if earlier else 'creating'}, takes 3 to 10 minutes")
    _wait(session, sagemaker, name, requests["CreateEndpointConfig"]["EndpointConfigName"])
    if earlier and is_stamped(earlier["EndpointConfigName"]):
        _delete_config(sagemaker, earlier["EndpointConfigName"])
    return name


def undeploy(session: Any, name: str) -> None:
    """Delete the endpoint, its config and its model; raises LaunchError if there is none."""
    found = find_endpoint(session, name)
    sagemaker = aws_client(session, "sagemaker")
    sagemaker.delete_endpoint(EndpointName=name)
    _delete_config(sagemaker, found["EndpointConfigName"])


def find_endpoint(session: Any, name: str) -> dict[str, Any]:
    """SageMaker's description of the endpoint; raises LaunchError if there is none."""
    found = _describe(aws_client(session, "sagemaker"), name)
    if found is None:
        raise LaunchError(
            f"{name}: no such endpoint in {session.region_name}; `make sagemaker ARGS=status` "
            "lists them"
        )
    return found


def latest(session: Any, count: int = 10) -> list[str]:
    """One line for each of the latest endpoints."""
    sagemaker = aws_client(session, "sagemaker")
    listed = sagemaker.list_endpoints(
        SortBy="CreationTime", SortOrder="Descending", MaxResults=count
    )["Endpoints"]
    return [line for item in listed for line in summary(session, item["EndpointName"])]


def summary(session: Any, name: str) -> list[str]:
    """A line on the endpoint of that name; none if there is none."""
    sagemaker = aws_client(session, "sagemaker")
    endpoint = _describe(sagemaker, name)
    return [_line(session, sagemaker, endpoint)] if endpoint else []


def _line(session: Any, sagemaker: Any, endpoint: dict[str, Any]) -> str:
    name = endpoint["EndpointName"]
    variants = _variants(sagemaker, endpoint["EndpointConfigName"])
    costs = [_cost(variant, session) for variant in variants]
    return (
        f"{endpoint['CreationTime']:%Y-%m-%d %H:%M}  Endpoint    {endpoint['EndpointStatus']:<10}  "
        f"{name}  {', '.join(costs)}"
    )


def _cost(variant: dict[str, Any], session: Any) -> str:
    if "ServerlessConfig" in variant:
        memory = variant["ServerlessConfig"]["MemorySizeInMB"]
        return f"the seconds of its requests at {memory} MB"
    machines = (variant["InstanceType"], variant["InitialInstanceCount"])
    try:
        price = f"${hourly_cost([machines], session, 'Hosting'):,.2f} per hour"
    except PriceUnknownError as error:
        price = str(error)
    return f"{price} for {machines[1]} x {machines[0]}"


def _describe(sagemaker: Any, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = sagemaker.describe_endpoint(EndpointName=name)
    except ClientError as error:
        # SageMaker reports an unknown endpoint as a ValidationException.
        if not error.response["Error"]["Code"].startswith("Validation"):
            raise
        return None
    return found


def _send(sagemaker: Any, requests: Requests) -> None:
    """Send the requests in order; if one is refused, delete what those before it created."""
    try:
        for operation, request in requests.items():
            getattr(sagemaker, xform_name(operation))(**request)
    except ClientError:
        _delete_config(sagemaker, requests["CreateEndpointConfig"]["EndpointConfigName"])
        raise


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
        problem = sagemaker.describe_endpoint(EndpointName=name)
        if problem["EndpointStatus"] != "Failed":
            raise LaunchError(
                f"endpoint {name}: {problem['EndpointStatus']} after {_POLL_S * _MOST_POLLS // 60} "
                "minutes; `make sagemaker ARGS=status` shows its state"
            ) from error
        sys.stderr.writelines(f"{line}\n" for line in _last_lines(session, name))
        raise LaunchError(
            f"endpoint {name}: {problem.get('FailureReason', 'failed')}; "
            f"make sagemaker-undeploy ARGS={name} deletes it"
        ) from error
    served = sagemaker.describe_endpoint(EndpointName=name)
    if served["EndpointConfigName"] != config:
        _delete_config(sagemaker, config)
        raise LaunchError(
            f"endpoint {name}: the update failed, and the earlier model serves: "
            f"{served.get('FailureReason', 'no reason given')}"
        )


def _last_lines(session: Any, name: str) -> Iterator[str]:
    """What the containers printed last."""
    logs = aws_client(session, "logs")
    group = f"/aws/sagemaker/Endpoints/{name}"
    for _, text in JobLog(logs, endpoint_request.VARIANT, group).new_lines()[-_LAST_LINES:]:
        yield text


def _delete_config(sagemaker: Any, name: str) -> None:
    """Delete an endpoint's config and the model of the same name, as far as they exist."""
    for delete in (
        lambda: sagemaker.delete_endpoint_config(EndpointConfigName=name),
        lambda: sagemaker.delete_model(ModelName=name),
    ):
        try:
            delete()
        except ClientError as error:
            if not error.response["Error"]["Code"].startswith("Validation"):
                raise


def _variants(sagemaker: Any, config: str) -> Sequence[dict[str, Any]]:
    found: list[dict[str, Any]] = sagemaker.describe_endpoint_config(EndpointConfigName=config)[
        "ProductionVariants"
    ]
    return found


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
