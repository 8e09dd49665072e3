"""Create the role, bucket and repository for jobs: ``make setup-aws ARGS="bucket=NAME"``.

``python -m launch.setup_aws`` applies launch/account.yaml as a CloudFormation stack: it creates the
stack, or updates it if the template or a parameter has changed. ``DRY_RUN=1`` prints the parameters
and the template without calling AWS. docs/settings.md lists the keys. Credentials, profile and
region come from boto3.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError, WaiterError
from pydantic import Field
from pydantic.dataclasses import dataclass

from entry_point.config.compose import load_config
from entry_point.config.schema import SETTINGS, Bool
from entry_point.contract.program import asks_for_help
from launch.command_line import LaunchError
from launch.sagemaker.aws import aws_client, is_dry_run, open_session, run_and_explain

TEMPLATE = Path(__file__).with_name("account.yaml")


@dataclass(config=SETTINGS)
class SetupConfig:
    """Creating the role, bucket and repository that jobs need in an AWS account."""

    bucket: str
    """Bucket for data, results and checkpoints."""
    create_bucket: Bool = True
    """false: use a bucket that exists, and leave it unchanged."""
    repository: str = "managed-training-template"
    """ECR repository of the image."""
    create_repository: Bool = True
    """false: use a repository that exists, and leave it unchanged."""
    read_buckets: list[str] = Field(default=[])
    """Names of other buckets that jobs may read."""
    kms_keys: list[str] = Field(default=[])
    """ARNs of the keys in `job.volume_kms_key` and `job.output_kms_key`."""
    vpc: Bool = False
    """Allow jobs to run in `job.subnets`."""
    stack: str = "managed-training-template"
    """Name of the CloudFormation stack. Another name creates another role."""

    def parameters(self, partition: str = "aws") -> dict[str, str]:
        """The template's parameters."""
        read = [f"arn:{partition}:s3:::{name}" for name in self.read_buckets]
        return {
            "Bucket": self.bucket,
            "CreateBucket": str(self.create_bucket).lower(),
            "Repository": self.repository,
            "CreateRepository": str(self.create_repository).lower(),
            "ReadBuckets": ",".join(each for arn in read for each in (arn, f"{arn}/*")),
            "KmsKeys": ",".join(self.kms_keys),
            "Vpc": str(self.vpc).lower(),
        }


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if the account is set up, else 1."""
    if asks_for_help(arguments, __doc__):
        return 0
    return run_and_explain(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    config = load_config("setup_aws", SetupConfig, arguments)
    if is_dry_run():
        for key, value in config.parameters().items():
            sys.stdout.write(f"{key}={value}\n")
        sys.stdout.write(f"\n{TEMPLATE.read_text()}")
        return 0
    session = open_session(None)
    partition = session.get_partition_for_region(session.region_name)
    stack = _apply(aws_client(session, "cloudformation"), config, partition)
    made = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
    sys.stdout.write(
        f"`make push` pushes the image to {made['Repository']}\n"
        "next: add these overrides, or set them in configs/launch.yaml:\n"
        f"  job.role={made['Role']} job.output=s3://{made['Bucket']}/runs\n"
    )
    return 0


def _apply(cloudformation: Any, config: SetupConfig, partition: str) -> dict[str, Any]:
    """Update or create the stack; returns its description. Raises LaunchError if it fails."""
    parameters = config.parameters(partition)
    request = {
        "StackName": config.stack,
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
            sys.stdout.write(f"stack {config.stack}: unchanged\n")
        else:
            raise
    stack: dict[str, Any] = cloudformation.describe_stacks(StackName=config.stack)["Stacks"][0]
    return stack


def _wait(cloudformation: Any, stack: str, verb: str) -> None:
    """Wait until the stack is complete; raises LaunchError with the first reason if it fails."""
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
            "; create_bucket=false or create_repository=false uses one that exists"
            if "already exists" in reason
            else ""
        )
        raise LaunchError(f"stack {name}: {' '.join(reason.split())}{advice}") from error
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
