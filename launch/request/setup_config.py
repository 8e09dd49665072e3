"""Typed settings of `make setup-aws`."""

import re
from dataclasses import dataclass, field

from entry_point.config.config_errors import ConfigError

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ROLE_NAME = re.compile(r"[\w+=,.@-]{1,64}", re.ASCII)


@dataclass
class SetupConfig:
    """Creating the role, bucket and repository that jobs need in an AWS account."""

    bucket: str
    """Bucket for data, results and checkpoints. Created if it does not exist."""
    role: str = "managed-training-template"
    """Name of the role that jobs run under."""
    repository: str = "managed-training-template"
    """ECR repository of the image."""
    read_buckets: list[str] = field(default_factory=list)
    """Other buckets that jobs may read."""
    kms_keys: list[str] = field(default_factory=list)
    """ARNs of the keys in `job.volume_kms_key` and `job.output_kms_key`."""
    vpc: bool = False
    """Allow jobs to run in `job.subnets`."""
    update: bool = False
    """Replace the policies of an existing role where they differ."""

    def __post_init__(self) -> None:
        for key, names in {"bucket": [self.bucket], "read_buckets": self.read_buckets}.items():
            for name in names:
                if not BUCKET_NAME.fullmatch(name):
                    must = "must be 3 to 63 lowercase letters, digits, dots and hyphens, no s3://"
                    raise ConfigError(key, name, must)
        if not _ROLE_NAME.fullmatch(self.role):
            raise ConfigError(
                "role", self.role, "must be a name, not an ARN, of 1 to 64 characters"
            )
        for key in self.kms_keys:
            if not key.startswith("arn:"):
                raise ConfigError("kms_keys", key, "must be the key's ARN, not its id or alias")
