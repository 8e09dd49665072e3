"""The launch config's shape: what machines (`target`) and what job (`job`).

Read from configs/launch.yaml by `launch.request.compose`.
"""

from dataclasses import dataclass, field, fields


@dataclass
class InstanceGroup:
    """One kind of machine in a job of several kinds."""

    name: str
    instance_type: str
    instance_count: int = 1


@dataclass
class Target:
    """The machines a job runs on, and for how long."""

    image: str | None = None
    """ECR URI, best with a digest."""
    device: str = "cpu"
    """What the image was built for: cpu or gpu."""
    instance_type: str | None = None
    instance_count: int = 1
    instance_groups: list[InstanceGroup] = field(default_factory=list)
    """In place of `instance_type` and `instance_count`."""
    volume_gb: int = 50
    """Size of the EBS volume; types with an NVMe disk of their own use that."""
    max_runtime_s: int = 86400
    spot: bool = False
    max_wait_s: int | None = None
    """Spot: waiting and running together; null for `max_runtime_s` and a day."""
    keep_alive_s: int | None = None
    """Warm pool: seconds the machines stay after the job."""


@dataclass
class Channel:
    """One input of the job, found in the container under `/opt/ml/input/data/<name>`."""

    s3: str = ""
    """S3 prefix; it must end in `/` in FastFile mode."""
    mode: str = "FastFile"
    """File copies everything before the start, FastFile streams what is read."""
    distribution: str = "FullyReplicated"
    """ShardedByS3Key gives each host its share of the objects."""
    type: str = "S3Prefix"
    """S3Prefix, or ManifestFile when `s3` names a manifest."""
    instance_groups: list[str] = field(default_factory=list)
    """The groups that get this channel; empty for all."""


@dataclass
class Job:
    """What the job is called, may read and write, and carries along."""

    name: str | None = None
    base_name: str = "image-training"
    region: str | None = None
    role: str | None = None
    output: str | None = None
    channels: dict[str, Channel] = field(default_factory=dict)
    checkpoints: str = "auto"
    """auto (below the output), none, or an S3 prefix."""
    tensorboard: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    subnets: list[str] = field(default_factory=list)
    security_groups: list[str] = field(default_factory=list)
    volume_kms_key: str | None = None
    output_kms_key: str | None = None
    encrypt_traffic: bool = False
    network_isolation: bool = False
    retries: int | None = None


@dataclass
class LaunchConfig:
    """configs/launch.yaml, typed."""

    target: Target = field(default_factory=Target)
    job: Job = field(default_factory=Job)
    resume_from: str | None = None


HEADS = {item.name for item in fields(LaunchConfig)}
"""First words of the overrides that are the launch config's; all others are the job's."""
