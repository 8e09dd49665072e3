"""A role, a bucket and a repository for jobs: `python -m launch.setup_aws bucket=NAME`.

What is missing is created, what is there is checked; doing it again changes nothing. The role's
policies are printed first. `DRY_RUN=1` prints everything and asks AWS for nothing. Credentials,
profile and region are boto3's own.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from entry_point.config.compose import load_config
from launch.aws.policies import Permissions
from launch.request.launch_errors import LaunchError
from launch.request.setup_config import SetupConfig
from launch.sagemaker import is_dry_run, run_and_explain

DESCRIPTION = "Training and Processing jobs of managed-training-template"
PRIVATE = {
    "BlockPublicAcls": True,
    "IgnorePublicAcls": True,
    "BlockPublicPolicy": True,
    "RestrictPublicBuckets": True,
}
# The parts of an upload that was killed cost money until somebody drops them.
LIFECYCLE = {
    "Rules": [
        {
            "ID": "drop the parts of unfinished uploads",
            "Status": "Enabled",
            "Filter": {},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
        }
    ]
}


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 when everything is as it should be, else 1."""
    return run_and_explain(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    from launch.aws import session as aws

    config = load_config("setup_aws", SetupConfig, arguments)
    if is_dry_run():
        _show(config, _permissions(config, "ACCOUNT", "REGION", "aws"))
        return 0
    session = aws.open_session(None)
    region = session.region_name
    account = aws.client(session, "sts").get_caller_identity()["Account"]
    permissions = _permissions(config, account, region, session.get_partition_for_region(region))
    _show(config, permissions)
    role = ensure_role(aws.client(session, "iam"), config, permissions)
    ensure_bucket(aws.client(session, "s3"), config.bucket, region)
    _ensure_repository(config.repository)
    _say(
        f"now set in configs/launch.yaml, under job:\n  role: {role}\n  output: s3://{config.bucket}/runs"
    )
    return 0


def ensure_role(iam: Any, config: SetupConfig, permissions: Permissions) -> str:
    """Create the role or check it; returns its ARN.

    Raises LaunchError if it is there and says something else, unless `update`.
    """
    trust, policy = permissions.trust(), permissions.policy()
    name, policy_name = config.role, f"jobs-{permissions.region}"
    try:
        role = iam.get_role(RoleName=name)["Role"]
    except iam.exceptions.NoSuchEntityException:
        role = iam.create_role(
            RoleName=name, AssumeRolePolicyDocument=json.dumps(trust), Description=DESCRIPTION
        )["Role"]
        _say(f"role {name}: created")
    found = _role_policy(iam, name, policy_name)
    wrong = [
        what
        for what, there, wanted in (
            ("trust policy", role["AssumeRolePolicyDocument"], trust),
            (f"policy {policy_name}", found or policy, policy),
        )
        if there != wanted
    ]
    if wrong and not config.update:
        raise LaunchError(
            f"role={name}: not as printed above: {', '.join(wrong)}; update=true replaces that, "
            "role=NAME makes another role"
        )
    if wrong:
        iam.update_assume_role_policy(RoleName=name, PolicyDocument=json.dumps(trust))
    if found != policy:
        iam.put_role_policy(
            RoleName=name, PolicyName=policy_name, PolicyDocument=json.dumps(policy)
        )
    _say(f"role {name}: its policies are as printed")
    return str(role["Arn"])


def ensure_bucket(s3: Any, name: str, region: str) -> None:
    """Create the bucket, private, or check that it is in the region and ours to use."""
    from botocore.exceptions import ClientError

    try:
        found = s3.head_bucket(Bucket=name)
    except ClientError as error:
        code = error.response["ResponseMetadata"]["HTTPStatusCode"]
        if code == 403:
            raise LaunchError(
                f"bucket={name}: belongs to somebody else, or you may not see it: choose another"
            ) from error
        if code != 404:
            raise
        _create_bucket(s3, name, region)
        return
    where = found.get("BucketRegion") or region
    if where != region:
        raise LaunchError(f"bucket={name}: is in {where}, jobs would run in {region}")
    _say(f"bucket {name}: there already, left as it is")


def _create_bucket(s3: Any, name: str, region: str) -> None:
    # The oldest region is the one that must not be named.
    place = {} if region == "us-east-1" else {"LocationConstraint": region}
    s3.create_bucket(Bucket=name, **({"CreateBucketConfiguration": place} if place else {}))
    s3.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=PRIVATE)
    s3.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration=LIFECYCLE)
    _say(f"bucket {name}: created in {region}, private")


def _ensure_repository(name: str) -> None:
    from launch.aws import ecr
    from launch.containers.engine import ContainerError

    try:
        ecr.ensure_repository(name)
    except ContainerError as error:
        raise LaunchError(str(error)) from error
    _say(f"repository {name}: there; `make push` fills it")


def _role_policy(iam: Any, role: str, name: str) -> dict[str, Any] | None:
    try:
        answer = iam.get_role_policy(RoleName=role, PolicyName=name)
    except iam.exceptions.NoSuchEntityException:
        return None
    document: dict[str, Any] = answer["PolicyDocument"]
    return document


def _permissions(config: SetupConfig, account: str, region: str, partition: str) -> Permissions:
    return Permissions(
        account=account,
        region=region,
        bucket=config.bucket,
        repository=config.repository,
        read_buckets=config.read_buckets,
        kms_keys=config.kms_keys,
        vpc=config.vpc,
        partition=partition,
    )


def _show(config: SetupConfig, permissions: Permissions) -> None:
    _say(f"bucket {config.bucket}: private; if new, parts of unfinished uploads go after 7 days")
    _say(
        f"repository {config.repository}: if new, scanned on push; untagged images go after 14 days"
    )
    _say(f"role {config.role}: who may take it\n{json.dumps(permissions.trust(), indent=2)}")
    _say(f"role {config.role}: what it may do\n{json.dumps(permissions.policy(), indent=2)}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
