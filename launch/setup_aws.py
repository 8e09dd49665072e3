"""Create role, bucket and repository for jobs: ``make setup-aws ARGS="Bucket=NAME"``.

``python -m launch.setup_aws PARAMETER=VALUE ... [stack=NAME]`` applies launch/account.yaml, which
describes its parameters, as a CloudFormation stack: it creates the stack, or updates it if the
template or a parameter has changed. A parameter that is left out has its default. Another
``stack`` has its own role. ``DRY_RUN=1`` prints the parameters and the template without
calling AWS. Credentials, profile and region come from boto3.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError, WaiterError

from entry_point.contract.program import UserError, asks_for_help
from launch.sagemaker.aws import aws_client, is_dry_run, open_session, run_and_explain

TEMPLATE = Path(__file__).with_name("account.yaml")
STACK = "managed-training-template"


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if the account is set up, else 1."""
    if asks_for_help(arguments, __doc__):
        return 0
    return run_and_explain(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    for each in arguments:
        if "=" not in each:
            raise UserError(f'{each}: must be PARAMETER=VALUE, as in ARGS="Bucket=my-bucket"')
    parameters = dict(each.split("=", 1) for each in arguments)
    name = parameters.pop("stack", STACK)
    if is_dry_run():
        sys.stdout.writelines(f"{key}={value}\n" for key, value in parameters.items())
        sys.stdout.write(f"\n{TEMPLATE.read_text()}")
        return 0
    stack = _apply(aws_client(open_session(), "cloudformation"), name, parameters)
    made = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
    sys.stdout.write(
        f"`make push` pushes the image to {made['Repository']}\n"
        "next: add these overrides, or set them in configs/launch.yaml:\n"
        f"  job.role={made['Role']} job.output=s3://{made['Bucket']}/runs\n"
    )
    return 0


def _apply(cloudformation: Any, name: str, parameters: dict[str, str]) -> dict[str, Any]:
    """Update or create the stack; returns its description. Raises UserError if it fails."""
    request = {
        "StackName": name,
        "TemplateBody": TEMPLATE.read_text(),
        "Parameters": [
            {"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()
        ],
        "Capabilities": ["CAPABILITY_IAM"],
    }
    try:
        updated = cloudformation.update_stack(**request)
        _wait(cloudformation, updated["StackId"], "update")
    except ClientError as error:
        message = error.response["Error"]["Message"]
        if "does not exist" in message:
            created = cloudformation.create_stack(**request)
            _wait(cloudformation, created["StackId"], "create")
        elif "No updates are to be performed" in message:
            sys.stdout.write(f"stack {name}: unchanged\n")
        else:
            raise
    stack: dict[str, Any] = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
    return stack


def _wait(cloudformation: Any, stack: str, verb: str) -> None:
    """Wait until the stack is complete; raises UserError with the first reason if it fails."""
    name = stack.split("/")[1]
    sys.stdout.write(f"stack {name}: {verb[:-1]}ing, takes about a minute\n")
    sys.stdout.flush()
    try:
        cloudformation.get_waiter(f"stack_{verb}_complete").wait(
            StackName=stack, WaiterConfig={"Delay": 5}
        )
    except WaiterError as error:
        reason = _first_failure(cloudformation, stack) or str(error)
        if verb == "create":
            # What remains of it is empty, and would be in the way of the next attempt.
            cloudformation.delete_stack(StackName=stack)
        advice = (
            "; CreateBucket=false or CreateRepository=false uses one that exists"
            if "already exists" in reason
            else ""
        )
        raise UserError(f"stack {name}: {' '.join(reason.split())}{advice}") from error
    sys.stdout.write(f"stack {name}: {verb}d\n")


def _first_failure(cloudformation: Any, stack: str) -> str | None:
    """The reason of the first resource that failed since the last create or update began."""
    reason = None
    pages = cloudformation.get_paginator("describe_stack_events").paginate(StackName=stack)
    for event in pages.search("StackEvents"):  # newest first
        if event.get("ResourceStatusReason") == "User Initiated":
            break
        if event["ResourceStatus"].endswith("_FAILED"):
            text = event.get("ResourceStatusReason", "no reason given")
            reason = f"{event['LogicalResourceId']}: {text}"
    return reason


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
