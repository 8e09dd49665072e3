"""Maps each member of a request to its config key, so that errors name what the user typed."""

import re
from typing import Any

from launch.request import service_model
from launch.request.launch_config import LaunchConfig

_MACHINES = r"(?:ResourceConfig|ProcessingResources\.ClusterConfig)\."
_GROUP = r"ResourceConfig\.InstanceGroups\[(\d+)\]\."
_TUNING = r"HyperParameterTuningJobConfig\."
_LIMITS = _TUNING + r"ResourceLimits\."
# Path of a request member -> config key; the first match counts, and `\1` is a name or number.
_CONFIG_KEYS = [
    (r"(?:Training|Processing|HyperParameterTuning)JobName", "job.name"),
    (_LIMITS + "MaxNumberOfTrainingJobs", "tuning.max_jobs"),
    (_LIMITS + "MaxParallelTrainingJobs", "tuning.parallel"),
    (_TUNING + r"HyperParameterTuningJobObjective\.MetricName", "tuning.objective"),
    (_TUNING + r"ParameterRanges\..*", "the swept values"),
    (r"(?:AlgorithmSpecification\.TrainingImage|AppSpecification\.ImageUri)", "target.image"),
    (r"RoleArn", "job.role"),
    (r"ProcessingInputs\[0\]\.S3Input\.S3Uri", "source"),
    (r"ProcessingInputs\[1\]\.S3Input\.S3Uri", "output"),
    (r"ProcessingOutputConfig\.Outputs\[0\]\.S3Output\.S3Uri", "output"),
    (r"ProcessingOutputConfig\.KmsKeyId", "job.output_kms_key"),
    (r"InputDataConfig", "job.channels"),
    (r"OutputDataConfig(?:\.S3OutputPath)?", "job.output"),
    (r"OutputDataConfig\.KmsKeyId", "job.output_kms_key"),
    (_MACHINES + r"InstanceType", "target.instance_type"),
    (_MACHINES + r"InstanceCount", "target.instance_count"),
    (_GROUP + "InstanceGroupName", r"target.instance_groups[\1].name"),
    (_GROUP + "InstanceType", r"target.instance_groups[\1].instance_type"),
    (_GROUP + "InstanceCount", r"target.instance_groups[\1].instance_count"),
    (r"ResourceConfig\.InstanceGroups", "target.instance_groups"),
    (r"ResourceConfig\.InstancePreferences\[(\d+)\]\.InstanceType", r"target.instance_types[\1]"),
    (r"ResourceConfig\.InstancePreferences", "target.instance_types"),
    (r"ResourceConfig\.TrainingPlanArn", "target.training_plan"),
    (_MACHINES + r"VolumeSizeInGB", "target.volume_gb"),
    (_MACHINES + r"VolumeKmsKeyId", "job.volume_kms_key"),
    (_MACHINES + r"KeepAlivePeriodInSeconds", "target.keep_alive_s"),
    (r"StoppingCondition\.MaxRuntimeInSeconds", "target.max_runtime_s"),
    (r"StoppingCondition\.MaxWaitTimeInSeconds", "target.max_wait_s"),
    (r"CheckpointConfig\.S3Uri", "job.checkpoints"),
    (r"TensorBoardOutputConfig\.S3OutputPath", "job.output"),
    (r"AppSpecification\.ContainerArguments(.*)", r"the job's overrides, arguments\1"),
    (r"(?:Static)?HyperParameters.*", "the job's overrides, cut into hyperparameters:"),
    (r"Environment\.(.*)", r"job.environment.\1"),
    (r"Environment", "job.environment"),
    (r"(?:NetworkConfig\.)?VpcConfig\.SecurityGroupIds(.*)", r"job.security_groups\1"),
    (r"(?:NetworkConfig\.)?VpcConfig\.Subnets(.*)", r"job.subnets\1"),
    (r"RetryStrategy\.MaximumRetryAttempts", "job.retries"),
    (r"Tags\[\d+\].*|Tags", "job.tags"),
]
# What to do about a required setting that is missing.
HINTS = {
    "target.image": "`make push` prints its URI",
    "job.role": "`make setup-aws` creates one",
    "job.output": "set it to an S3 prefix, s3://bucket/prefix",
    "job.security_groups": "set it together with job.subnets",
    "job.subnets": "set it together with job.security_groups",
}
# In place of the service's regular expressions.
_NAME = "must be 1 to {most} letters, digits and hyphens"
_S3_PREFIX = "must be an S3 prefix, s3://bucket/prefix"
_WORDS = {
    "target.training_plan": "must be the ARN of a training plan",
    "job.role": "must be the ARN of a role, arn:aws:iam::ACCOUNT:role/NAME",
    "job.name": _NAME,
    "job.base_name": f"{_NAME}, with the time that is added",
    "job.output": _S3_PREFIX,
    "job.checkpoints": f"{_S3_PREFIX}, auto or none",
    "output": _S3_PREFIX,
    "source": _S3_PREFIX,
}
_JOB_NAMES = ("TrainingJobName", "ProcessingJobName", "HyperParameterTuningJobName")
_CHANNEL_FIELDS = {
    "ChannelName": "",
    "DataSource.S3DataSource.S3DataType": ".type",
    "DataSource.S3DataSource.S3Uri": ".s3",
    "DataSource.S3DataSource.S3DataDistributionType": ".distribution",
    "DataSource.S3DataSource.InstanceGroupNames": ".instance_groups",
    "DataSource.FileSystemDataSource.FileSystemId": ".file_system",
    "DataSource.FileSystemDataSource.FileSystemType": ".type",
    "DataSource.FileSystemDataSource.DirectoryPath": ".path",
    "InputMode": ".mode",
}


def refusals(request: dict[str, Any], operation: str, config: LaunchConfig) -> list[str]:
    """Return a line for each config key with a value that the service's description forbids."""
    first: dict[str, service_model.Problem] = {}
    for problem in service_model.problems(request, operation):
        key = config_key(problem.path, config)
        # One key can set several members; the problem that has the value says more.
        if key not in first or (first[key].value is None and problem.value is not None):
            first[key] = problem
    return [_line(key, problem, config) for key, problem in first.items()]


def config_key(path: str, config: LaunchConfig) -> str:
    """Return the config key that sets the request member at `path`."""
    path = path.removeprefix("TrainingJobDefinition.")
    if path in _JOB_NAMES and not config.job.name:
        return "job.base_name"
    if path == "CheckpointConfig.S3Uri" and config.job.checkpoints == "auto":
        return "job.output"
    channel = re.fullmatch(r"InputDataConfig\[(\d+)\]\.?(.*)", path)
    if channel:
        name = list(config.job.channels)[int(channel[1])]
        member = re.sub(r"\[\d+\]$", "", channel[2])
        return f"job.channels.{name}{_CHANNEL_FIELDS.get(member, '')}"
    for pattern, key in _CONFIG_KEYS:
        if match := re.fullmatch(pattern, path):
            return match.expand(key)
    return path


def _line(key: str, problem: service_model.Problem, config: LaunchConfig) -> str:
    value = config.job.base_name if key == "job.base_name" else problem.value
    hint = f"; {HINTS[key]}" if key in HINTS and problem.value is None else ""
    reason = problem.reason
    if reason.startswith("must match"):
        words = _S3_PREFIX if re.fullmatch(r"job\.channels\..*\.s3", key) else _WORDS.get(key)
        most = re.search(r"\{0,(\d+)\}", reason)
        reason = words.format(most=int(most[1]) + 1 if most else 63) if words else reason
    return f"{key}{_shown(value)} {reason}{hint}"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    text = str(value)
    return f"={text if len(text) <= 200 else text[:200] + '...'}:"
