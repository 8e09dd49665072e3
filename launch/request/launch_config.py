"""The launch config: on which machines (`target`) and as what (`job`) a job runs on SageMaker."""

from dataclasses import dataclass, field
from typing import Any

from entry_point.config.knob import knob

DEVICES = ("cpu", "gpu")


@dataclass
class InstanceGroup:
    """One instance type of a job that uses several."""

    name: str
    """Name of the group. Channels refer to it."""
    instance_type: str
    """Instance type of the group."""
    instance_count: int = 1
    """Number of instances in the group."""


@dataclass
class Target:
    """The machines of a job, and how long it may use them."""

    image: str | None = None
    """ECR URI of the image, with a digest if possible. `make push` prints it."""
    device: str = knob("cpu", choices=DEVICES)
    """The device that the image was built for. `gpu` also sets `trainer.device=cuda`."""
    instance_type: str | None = "ml.c7i.2xlarge"
    """SageMaker instance type."""
    instance_count: int = 1
    """Number of instances."""
    instance_groups: list[InstanceGroup] = field(default_factory=list)
    """Several instance types: a list of {name, instance_type, instance_count}. Replaces
    `instance_type` and `instance_count`."""
    instance_types: list[str] = field(default_factory=list)
    """Instance types in order of preference, at most 5: the job gets the first that is available.
    Replaces `instance_type`."""
    training_plan: str | None = None
    """ARN of a SageMaker training plan whose reserved capacity the job uses."""
    health_check: bool = False
    """Test hardware and network of the instances before the job starts."""
    volume_gb: int = 50
    """Size of the EBS volume in GB. Instance types with a local NVMe disk use that instead."""
    max_runtime_s: int = 86400
    """Seconds after which SageMaker stops the job."""
    spot: bool = False
    """Use spot instances. An interrupted job resumes from its checkpoints."""
    max_wait_s: int | None = None
    """`spot=true`: seconds for waiting and running together. null: `max_runtime_s` plus one day."""
    keep_alive_s: int | None = None
    """Seconds to keep the instances in a warm pool after the job. null: no warm pool."""

    @property
    def alternatives(self) -> list[list[tuple[str, int]]]:
        """Type and number of the machines, by group: one list, or one for each preferred type."""
        if self.instance_groups:
            return [[(group.instance_type, group.instance_count) for group in self.instance_groups]]
        types = self.instance_types or [self.instance_type or ""]
        return [[(instance_type, self.instance_count)] for instance_type in types]

    @property
    def instance_type_keys(self) -> dict[str, str]:
        """The instance types by the keys that set them."""
        if self.instance_groups:
            return {
                f"target.instance_groups[{number}].instance_type": group.instance_type
                for number, group in enumerate(self.instance_groups)
            }
        if self.instance_types:
            preferred = enumerate(self.instance_types)
            return {f"target.instance_types[{number}]": kind for number, kind in preferred}
        return {"target.instance_type": self.instance_type} if self.instance_type else {}


@dataclass
class Channel:
    """One input of a job, in the container at `/opt/ml/input/data/<name>`.

    `job.channels.NAME=s3://bucket/prefix/` sets `s3` alone.
    """

    s3: str | None = None
    """S3 prefix. In FastFile mode it ends in `/`."""
    file_system: str | None = None
    """Id of an EFS or FSx for Lustre file system, instead of `s3`. Needs `job.subnets` and SDK
    v3."""
    path: str = "/"
    """`file_system`: the folder on it. FSx for Lustre: starts with its mount name."""
    mode: str = "FastFile"
    """`File`: everything is copied before the job starts. `FastFile`: files are streamed as they
    are read."""
    distribution: str = "FullyReplicated"
    """`FullyReplicated`: each host gets all objects. `ShardedByS3Key`: each host gets its share."""
    type: str = "S3Prefix"
    """`S3Prefix`, or `ManifestFile` if `s3` names a manifest. `file_system`: `EFS` or
    `FSxLustre`."""
    instance_groups: list[str] = field(default_factory=list)
    """Names of the instance groups that get this channel. Empty: all."""


@dataclass
class Job:
    """The job's name, role, inputs, outputs and network."""

    name: str | None = None
    """Name of the job. null: `base_name` and the time."""
    base_name: str = "image-training"
    """Start of the name when `name` is null."""
    region: str | None = None
    """AWS region. null: boto3's (AWS_DEFAULT_REGION or the profile)."""
    role: str | None = None
    """ARN of the role that the job runs under. `make setup-aws` creates one."""
    output: str | None = None
    """S3 prefix. Everything the job writes goes below `OUTPUT/JOB-NAME/`."""
    channels: dict[str, Channel] = field(default_factory=dict)
    """Inputs: each name with an S3 prefix, or with the fields of a channel."""
    code: bool = False
    """Send `project/` and `configs/` with the job, in a channel `code`, and run these instead of
    the image's. They are uploaded below `OUTPUT/code/`, once per content. `make docker-train` takes
    this key too."""
    checkpoints: str = "auto"
    """`auto`: `OUTPUT/JOB-NAME/checkpoints`. `none`: no checkpoints. Or an S3 prefix."""
    tensorboard: bool = True
    """Write TensorBoard logs to `OUTPUT/JOB-NAME/tensorboard`."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of the container."""
    tags: dict[str, str] = field(default_factory=dict)
    """AWS tags of the job."""
    subnets: list[str] = field(default_factory=list)
    """VPC subnets. Needs `security_groups`."""
    security_groups: list[str] = field(default_factory=list)
    """VPC security groups. Needs `subnets`."""
    volume_kms_key: str | None = None
    """KMS key of the EBS volume."""
    output_kms_key: str | None = None
    """KMS key of the output in S3."""
    remote_debug: bool = False
    """Let you open a shell in the running container with AWS Systems Manager."""
    session_chaining: bool = False
    """Pass the session tags of your role on to `role`."""
    mlflow: str | None = None
    """ARN of one of SageMaker's MLflow servers or apps, for `loggers=[mlflow]`."""
    queue: str | None = None
    """Name of an AWS Batch queue that starts the job when there is capacity. null: at once."""
    encrypt_traffic: bool = False
    """Encrypt the traffic between hosts."""
    network_isolation: bool = False
    """Run the container without network access."""
    request: dict[str, Any] = field(default_factory=dict)
    """Any other members of CreateTrainingJob, merged into the request; null removes one."""
    retries: int | None = None
    """Attempts after an internal error of the service, 1 to 30. null: SageMaker's default."""


@dataclass
class Tuning:
    """The trials of `make sagemaker-sweep`."""

    objective: str | None = None
    """Metric that the trials are compared by, as `validation:accuracy`. null: the task's first."""
    max_jobs: int | None = None
    """Number of trials. Needed if a value is an `interval`; otherwise every combination is
    trained."""
    parallel: int = 2
    """Trials at a time."""
    early_stopping: bool = False
    """Stop trials that are worse than the median of the earlier ones. Needs an `interval`."""


@dataclass
class LaunchConfig:
    """A job on SageMaker."""

    target: Target = field(default_factory=Target)
    job: Job = field(default_factory=Job)
    tuning: Tuning = field(default_factory=Tuning)
    resume_from: str | None = None
    """Name of an earlier job from whose checkpoints to resume."""
