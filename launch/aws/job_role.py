"""The IAM role that jobs run under: its policies, creating it, checking it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from launch.command_line import LaunchError
from launch.request.setup_config import SetupConfig

VERSION = "2012-10-17"
DESCRIPTION = "Training and Processing jobs of managed-training-template"
_NETWORK_ACTIONS = (
    "CreateNetworkInterface",
    "CreateNetworkInterfacePermission",
    "DeleteNetworkInterface",
    "DeleteNetworkInterfacePermission",
    "DescribeDhcpOptions",
    "DescribeNetworkInterfaces",
    "DescribeSecurityGroups",
    "DescribeSubnets",
    "DescribeVpcs",
)


@dataclass(frozen=True)
class Permissions:
    """What jobs may do with the resources in the config, all in one account and region."""

    config: SetupConfig
    account: str
    region: str
    partition: str = "aws"

    def trust(self) -> dict[str, Any]:
        """The trust policy: SageMaker may assume the role, for jobs of this account only."""
        return {
            "Version": VERSION,
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": "sagemaker.amazonaws.com"},
                    "Action": "sts:AssumeRole",
                    "Condition": {"StringEquals": {"aws:SourceAccount": self.account}},
                }
            ],
        }

    def policy(self) -> dict[str, Any]:
        """The permissions that this template's training and Processing jobs need, no others."""
        return {"Version": VERSION, "Statement": list(self._statements())}

    def _statements(self) -> Iterator[dict[str, Any]]:
        config = self.config
        own, *others = (
            f"arn:{self.partition}:s3:::{name}" for name in (config.bucket, *config.read_buckets)
        )
        yield _allow(
            "Bucket",
            ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
            [f"{own}/*"],
        )
        if others:
            yield _allow("OtherBuckets", ["s3:GetObject"], [f"{other}/*" for other in others])
        yield _allow("ListBuckets", ["s3:ListBucket", "s3:GetBucketLocation"], [own, *others])
        yield _allow(
            "Image",
            ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            [self._arn("ecr", f"repository/{config.repository}")],
        )
        # This action does not support resource ARNs.
        yield _allow("Registry", ["ecr:GetAuthorizationToken"], ["*"])
        logs = ("CreateLogGroup", "CreateLogStream", "DescribeLogStreams", "PutLogEvents")
        yield _allow(
            "Logs",
            [f"logs:{action}" for action in logs],
            [self._arn("logs", "log-group:/aws/sagemaker/*")],
        )
        yield {
            **_allow("Metrics", ["cloudwatch:PutMetricData"], ["*"]),
            "Condition": {"StringLike": {"cloudwatch:namespace": "/aws/sagemaker/*"}},
        }
        if config.kms_keys:
            keys = ("CreateGrant", "Decrypt", "DescribeKey", "Encrypt", "GenerateDataKey")
            yield _allow("Keys", [f"kms:{action}" for action in keys], config.kms_keys)
        if config.vpc:
            yield _allow("Network", [f"ec2:{action}" for action in _NETWORK_ACTIONS], ["*"])

    def _arn(self, service: str, resource: str) -> str:
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"


def _allow(sid: str, actions: list[str], resources: list[str]) -> dict[str, Any]:
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}


def ensure_role(iam: Any, permissions: Permissions) -> tuple[str, str]:
    """Create the role or check its policies; returns its ARN and what was done.

    Raises LaunchError if the existing policies differ, unless `update`.
    """
    name, trust, policy = permissions.config.role, permissions.trust(), permissions.policy()
    policy_name = f"jobs-{permissions.region}"
    done = "unchanged"
    try:
        role = iam.get_role(RoleName=name)["Role"]
    except iam.exceptions.NoSuchEntityException:
        role = iam.create_role(
            RoleName=name, AssumeRolePolicyDocument=json.dumps(trust), Description=DESCRIPTION
        )["Role"]
        done = "created"
    found = _inline_policy(iam, name, policy_name)
    different = []
    if role["AssumeRolePolicyDocument"] != trust:
        different.append("trust policy")
    if found not in (None, policy):
        different.append(f"policy {policy_name}")
    if different and not permissions.config.update:
        raise LaunchError(
            f"role={name}: differs from the policies printed above: {', '.join(different)}; set "
            "update=true to replace them, or role=NAME to create another role"
        )
    if different:
        iam.update_assume_role_policy(RoleName=name, PolicyDocument=json.dumps(trust))
        done = "updated"
    if found != policy:
        iam.put_role_policy(
            RoleName=name, PolicyName=policy_name, PolicyDocument=json.dumps(policy)
        )
    return str(role["Arn"]), done


def _inline_policy(iam: Any, role: str, name: str) -> Any:
    try:
        return iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
    except iam.exceptions.NoSuchEntityException:
        return None
