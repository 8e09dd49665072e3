"""The CreateTrainingJob request for a launch config, and what the requests of other jobs share."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from entry_point.config.config_errors import ConfigError
from entry_point.config.hyperparameters import encode
from entry_point.job.program import UserError
from launch.revision import commit
from launch.sagemaker.config import Channel, Job, LaunchConfig

SPOT_WAIT_S = 86400
BASE_NAME = "image-training"
PROJECT = "managed-training-template"
"""The tag `project` unless `job.tags.project` is another."""
KEPT = "checkpoints"
"""The folder of job.output with the checkpoints of all jobs, which a rule of the bucket deletes."""
WRITTEN = {
    "CheckpointConfig": "/opt/ml/checkpoints",
    "TensorBoardOutputConfig": "/opt/ml/output/data/tensorboard",
}
"""Members of the request -> the folder that the job writes for them."""
_LONGEST_NAME = 63
_GPU_TYPE = re.compile(r"ml\.[pg]\d")
# Problems in these lines are reported by `checks` under their settings.
_NAMED_BY_SETTING = (
    *('"RoleArn"', '"ImageUri"'),  # of job.role and target.image, the others of job.output
    *('"OutputDataConfig"', '"S3OutputPath"', '"S3Uri"'),
)


def build(config: LaunchConfig, overrides: Sequence[str], name: str) -> dict[str, Any]:
    """Returns the request for one training job that runs with the Hydra overrides, but for the
    metrics, which depend on what the job reads of it.

    A null or empty setting is left out. Members of `job.request` replace those of the settings.
    """
    target, job = config.target, config.job
    # A GPU that does not work is an error, rather than a job that trains on the CPU.
    device = ["trainer.device=cuda"] if is_gpu(target.instance_type) else []
    request: dict[str, Any] = {
        "TrainingJobName": name,
        "AlgorithmSpecification": {"TrainingImage": target.image, "TrainingInputMode": "File"},
        "InputDataConfig": [_channel(name, channel) for name, channel in job.channels.items()],
        "OutputDataConfig": {"S3OutputPath": _root(job), "KmsKeyId": job.kms_key},
        "ResourceConfig": machines(config),
        "StoppingCondition": {
            "MaxRuntimeInSeconds": target.max_runtime_s,
            "MaxWaitTimeInSeconds": target.max_runtime_s + SPOT_WAIT_S if target.spot else None,
        },
        "EnableManagedSpotTraining": target.spot or None,
        "CheckpointConfig": {
            "S3Uri": _checkpoints(config, name),
            "LocalPath": WRITTEN["CheckpointConfig"],
        },
        "TensorBoardOutputConfig": {
            "S3OutputPath": _below_output(job, f"{name}/tensorboard"),
            "LocalPath": WRITTEN["TensorBoardOutputConfig"],
        },
        "HyperParameters": encode([*device, *overrides]),
        **job.network,
        **permissions(job),
    }
    return merged(drop_empty(request), job.request)


def machines(config: LaunchConfig) -> dict[str, Any]:
    """Returns the instances of a job of any kind, and their volumes."""
    target = config.target
    return {
        "InstanceType": target.instance_type,
        "InstanceCount": target.instance_count,
        "VolumeSizeInGB": target.volume_gb,
        "VolumeKmsKeyId": config.job.kms_key,
    }


def permissions(job: Job) -> dict[str, Any]:
    """Returns the role, the variables and the tags of a job of any kind."""
    tags = {"project": PROJECT, "commit": commit(), **job.tags}
    return {
        "RoleArn": job.role,
        "Environment": job.environment,
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }


def merged(base: Any, extra: Any) -> Any:
    """`base` with the members of `extra`: dicts are merged, null removes a member."""
    if not (isinstance(base, dict) and isinstance(extra, dict)):
        return extra
    members = {**base, **{key: merged(base.get(key, {}), value) for key, value in extra.items()}}
    return {key: member for key, member in members.items() if member is not None}


def stamped(base: str) -> str:
    """Returns a new name: the base, shortened if need be, and the time in milliseconds."""
    now = datetime.now(UTC)
    stamp = f"-{now:%y%m%d-%H%M%S}-{now.microsecond // 1000:03d}"
    return base[: _LONGEST_NAME - len(stamp)].rstrip("-") + stamp


def is_gpu(instance_type: str) -> bool:
    """Returns whether instances of this type have NVIDIA GPUs."""
    return bool(_GPU_TYPE.match(instance_type))


def on_gpu(resources: dict[str, Any]) -> bool:
    """Returns whether a job with this ResourceConfig has GPUs, so that its image is for them."""
    choices = resources.get("InstanceGroups", []) + resources.get("InstancePreferences", [])
    return any(is_gpu(each.get("InstanceType", "")) for each in (resources, *choices))


def host_counts(resources: dict[str, Any]) -> list[int]:
    """Returns how many hosts a job with this ResourceConfig may get, which depends on the type if
    it prefers several with a number each."""
    groups = (resources, *resources.get("InstanceGroups", []))
    number = sum(each.get("InstanceCount", 0) for each in groups) or 1
    preferences = resources.get("InstancePreferences", [])
    return [each.get("InstanceCount", number) for each in preferences] or [number]


def require_types(request: dict[str, Any], operation: str) -> None:
    """Raise UserError for members that boto3 does not know, of another type or missing."""
    from botocore.loaders import Loader
    from botocore.model import ServiceModel
    from botocore.validate import ParamValidator

    service = ServiceModel(Loader().load_service_model("sagemaker", "service-2"))
    shape = service.operation_model(operation).input_shape
    lines = ParamValidator().validate(request, shape).generate_report().splitlines()
    if wrong := [line for line in lines if not line.endswith(_NAMED_BY_SETTING)]:
        raise UserError(*wrong)


def _checkpoints(config: LaunchConfig, name: str) -> str | None:
    earlier = config.resume_from
    if earlier and earlier.startswith("s3://"):
        return earlier
    return _below_output(config.job, f"{KEPT}/{earlier or name}")


def _root(job: Job) -> str | None:
    return job.output.rstrip("/") if job.output else None


def _below_output(job: Job, path: str) -> str | None:
    return f"{_root(job)}/{path}" if job.output else None


def _channel(name: str, channel: Channel) -> dict[str, Any]:
    if bool(channel.s3) == bool(channel.source):
        key = f"job.channels.{name}"
        message = f"must have {key}.s3 or {key}.source, and not both; ~{key} drops it"
        raise ConfigError(key, message=message)
    prefix = {
        "S3DataType": "S3Prefix",
        "S3Uri": channel.s3,
        "S3DataDistributionType": channel.distribution,
    }
    return {
        "ChannelName": name,
        "DataSource": channel.source or {"S3DataSource": prefix},
        "InputMode": "File" if channel.source else channel.mode,
    }


def drop_empty(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the request without null members and without members that are, or become, empty."""

    def pruned(value: Any) -> Any:
        if isinstance(value, dict):
            return drop_empty(value)
        return [pruned(member) for member in value] if isinstance(value, list) else value

    members = {key: pruned(member) for key, member in request.items()}
    return {key: member for key, member in members.items() if member not in (None, {}, [])}
