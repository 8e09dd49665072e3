"""What the jobs' role may do, as IAM documents: pure, without AWS."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

VERSION = "2012-10-17"
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
    """The things that jobs touch, all in one account and region."""

    account: str
    region: str
    bucket: str
    repository: str
    read_buckets: Sequence[str] = ()
    kms_keys: Sequence[str] = ()
    vpc: bool = False
    partition: str = field(default="aws")

    def trust(self) -> dict[str, Any]:
        """SageMaker may take the role, for this account's own jobs only."""
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
        """All that training and Processing jobs of this template need, and nothing else."""
        return {"Version": VERSION, "Statement": list(self._statements())}

    def _statements(self) -> Iterator[dict[str, Any]]:
        yield _allow(
            "Bucket",
            ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
            [f"{self._bucket_arn(self.bucket)}/*"],
        )
        if self.read_buckets:
            objects = [f"{self._bucket_arn(name)}/*" for name in self.read_buckets]
            yield _allow("OtherBuckets", ["s3:GetObject"], objects)
        buckets = [self._bucket_arn(name) for name in (self.bucket, *self.read_buckets)]
        yield _allow("ListBuckets", ["s3:ListBucket", "s3:GetBucketLocation"], buckets)
        yield _allow(
            "Image",
            ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            [self._arn("ecr", f"repository/{self.repository}")],
        )
        # This action knows no resources.
        yield _allow("Registry", ["ecr:GetAuthorizationToken"], ["*"])
        yield _allow(
            "Logs",
            [
                "logs:CreateLogGroup",
                "logs:CreateLogStream",
                "logs:DescribeLogStreams",
                "logs:PutLogEvents",
            ],
            [self._arn("logs", "log-group:/aws/sagemaker/*")],
        )
        yield {
            **_allow("Metrics", ["cloudwatch:PutMetricData"], ["*"]),
            "Condition": {"StringLike": {"cloudwatch:namespace": "/aws/sagemaker/*"}},
        }
        if self.kms_keys:
            actions = ("CreateGrant", "Decrypt", "DescribeKey", "Encrypt", "GenerateDataKey")
            yield _allow("Keys", [f"kms:{action}" for action in actions], list(self.kms_keys))
        if self.vpc:
            yield _allow("Network", [f"ec2:{action}" for action in _NETWORK_ACTIONS], ["*"])

    def _arn(self, service: str, resource: str) -> str:
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"

    def _bucket_arn(self, name: str) -> str:
        return f"arn:{self.partition}:s3:::{name}"


def _allow(sid: str, actions: list[str], resources: list[str]) -> dict[str, Any]:
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
