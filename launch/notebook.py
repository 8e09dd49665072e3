"""Training on SageMaker from a notebook or another Python program, with SDK v3's own objects.

    from launch.notebook import trainer

    t = trainer("data=folder", "job.channels.training=s3://bucket/photos/", "optim.lr=0.1")
    t.hyperparameters["optim.lr"] = "0.05"
    t.train()

Needs this clone on the path, and `pip install -r requirements/launch-v3.txt`. With SDK v2, see
examples/estimator_v2.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from entry_point.config.config_errors import ConfigError, near
from entry_point.config.hyperparameters import decode
from entry_point.config.train_config import load_train_config
from entry_point.job.known_tasks import ALL_METRICS
from entry_point.job.metrics_line import metric_regexes
from entry_point.job.program import UserError
from entry_point.job.run_folder import PER_JOB
from launch.sagemaker.aws import open_session
from launch.sagemaker.training import TrainingSpec, load_spec, prepare
from launch.sagemaker.training_request import BASE_NAME, job_name

if TYPE_CHECKING:
    from sagemaker.train import ModelTrainer
    from sagemaker.train.tuner import HyperparameterTuner

# Replaces the SDK's defaults files: nothing is added to a request, and no telemetry is sent.
_PLAIN = {
    "SchemaVersion": "1.0",
    "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}},
}
# SDK v3 validates the role with IAM calls that the user may not be allowed to make.
_QUIET = {"SAGEMAKER_VALIDATE_ROLE": "false"}
# The members of CreateTrainingJob that ModelTrainer has an argument or a method for.
_ARGUMENTS = (
    *(f"AlgorithmSpecification.{name}" for name in ("Training", "MetricDefinitions")),
    *("ResourceConfig", "StoppingCondition", "EnableManagedSpotTraining", "CheckpointConfig"),
    *("InputDataConfig", "OutputDataConfig", "TensorBoardOutputConfig", "HyperParameters"),
    *("VpcConfig", "EnableNetworkIsolation", "EnableInterContainerTrafficEncryption"),
    *("RoleArn", "Environment", "Tags", "RetryStrategy", "InfraCheckConfig", "RemoteDebugConfig"),
    "SessionChainingConfig",
)
# What HyperparameterTuner takes from a trainer's compute and networking.
_TUNED = (
    *("instance_type", "instance_count", "volume_size_in_gb", "enable_managed_spot_training"),
    *("subnets", "security_group_ids"),
)


def trainer(*overrides: str, session: Any = None) -> ModelTrainer:
    """Return a `sagemaker.train.ModelTrainer` for these overrides of `make sagemaker-train`.

    Its channels are bound, and what you change on it is sent. Each `train()` starts a job with a
    new name, and keeps checkpoints below that name. `job.name` is the first part of the names.
    `session` is one of the SDK's; with a `PipelineSession`, `train()` returns a step's arguments.
    The SDK's telemetry and defaults files are off.

    Raises UserError with one line for each problem: an override that is invalid, a bucket that
    does not exist, or a member of `job.request` that ModelTrainer has no argument for. AWS errors
    pass through.
    """
    _require_sdk()
    from sagemaker.core.helper.session_helper import Session
    from sagemaker.core.workflow.pipeline_context import PipelineSession
    from sagemaker.train import ModelTrainer, configs

    spec = load_spec(overrides)
    boto_session = session.boto_session if session else open_session()
    prepare(spec, boto_session)
    if refused := [*_without_argument(spec.config.job.request)]:
        raise UserError(*refused)
    request = _shared_request(spec, in_pipeline=isinstance(session, PipelineSession))
    session = session or Session(boto_session=boto_session, sagemaker_config=_PLAIN)
    session.sagemaker_config = _PLAIN
    # Afterwards, the caller's other use of the SDK keeps its own settings.
    with patch.dict(os.environ, _QUIET):
        t = ModelTrainer(
            **_arguments(request),
            base_job_name=spec.config.job.name or BASE_NAME,
            sagemaker_session=session,
        )
    metrics = request["AlgorithmSpecification"].get("MetricDefinitions", [])
    t.with_metric_definitions([configs.MetricDefinition(**_snake(metric)) for metric in metrics])
    for member, method in {
        "TensorBoardOutputConfig": t.with_tensorboard_output_config,
        "RetryStrategy": t.with_retry_strategy,
        "InfraCheckConfig": t.with_infra_check_config,
        "RemoteDebugConfig": t.with_remote_debug_config,
        "SessionChainingConfig": t.with_session_chaining_config,
    }.items():
        if member in request:
            method(getattr(configs, member)(**_snake(request[member])))
    return t


def _shared_request(spec: TrainingSpec, *, in_pipeline: bool) -> dict[str, Any]:
    """Returns the request of all jobs of one object; each keeps checkpoints below its own name.

    Their prefix is new for each object. In a pipeline it has the execution's id instead, so that
    the pipeline's definition is the same each time that it is built.
    """
    from sagemaker.core.workflow.execution_variables import ExecutionVariables
    from sagemaker.core.workflow.functions import Join

    config, base = spec.config, spec.config.job.name or BASE_NAME
    if not config.resume_from:
        environment = {PER_JOB: "true", **config.job.environment}
        config = replace(config, job=replace(config.job, environment=environment))
    name = base if in_pipeline else job_name(replace(config.job, name=None), base)
    request = replace(spec, config=config).request(name)
    checkpoints = request.get("CheckpointConfig", {})
    prefix = checkpoints.get("S3Uri", "")
    if in_pipeline and prefix.endswith(f"/checkpoints/{base}"):
        values = [prefix, ExecutionVariables.PIPELINE_EXECUTION_ID]
        request["CheckpointConfig"] = {**checkpoints, "S3Uri": Join(on="/", values=values)}
    return request


def tuner(
    trainer: ModelTrainer, objective: str, ranges: Mapping[str, Any], **options: Any
) -> HyperparameterTuner:
    """Return the SDK's `HyperparameterTuner` over settings of a trainer of this module.

    Args:
        objective: a metric, such as `validation:accuracy`; losses and errors are minimized.
        ranges: key of a setting -> `ContinuousParameter`, `IntegerParameter` or
            `CategoricalParameter` of the SDK.
        options: other arguments of `HyperparameterTuner`, such as `max_jobs`.

    Raises UserError for an unknown objective, for a value that a trial would refuse, and for what
    HyperparameterTuner would drop. Each trial keeps checkpoints below its own name.
    """
    from sagemaker.train.tuner import HyperparameterTuner

    given = {key: str(value) for key, value in (trainer.hyperparameters or {}).items()}
    config, _ = load_train_config(decode(given))
    metrics = metric_regexes(config.task.metrics)
    if objective not in metrics:
        shown = ", ".join(name for name in metrics if name.startswith("validation:"))
        raise ConfigError(
            "objective", objective, f"must be one of {shown}{near(objective, metrics)}"
        )
    for key, tried in ranges.items():
        for value in getattr(tried, "values", None) or (tried.min_value, tried.max_value):
            load_train_config(decode({**given, key: str(value)}))
    if dropped := [*_dropped_by_tuner(trainer)]:
        raise UserError(*dropped)
    settings = {
        "objective_type": "Minimize" if _is_minimized(objective) else "Maximize",
        "metric_definitions": [{"Name": name, "Regex": regex} for name, regex in metrics.items()],
        "base_tuning_job_name": trainer.base_job_name,
        **options,
    }
    return HyperparameterTuner(
        model_trainer=trainer,
        objective_metric_name=objective,
        hyperparameter_ranges=dict(ranges),
        **settings,
    )


def _require_sdk() -> None:
    try:
        import sagemaker.train  # noqa: F401
    except ModuleNotFoundError:
        raise UserError(
            "SDK v3 of SageMaker is not installed in this environment: %pip install "
            "'sagemaker>=3.21,<4'; for SDK v2 see examples/estimator_v2.py"
        ) from None


def _without_argument(members: Any, path: str = "") -> Iterator[str]:
    """Yields a line for each member of `job.request` that ModelTrainer would not send."""
    for name, value in members.items():
        member = f"{path}{name}"
        if isinstance(value, dict) and not member.startswith(_ARGUMENTS):
            yield from _without_argument(value, f"{member}.")
        elif value is not None and not member.startswith(_ARGUMENTS):
            remedy = "drop it, or use `make sagemaker-train`"
            yield f"job.request.{member}: ModelTrainer has no argument for it; {remedy}"


def _dropped_by_tuner(trainer: ModelTrainer) -> Iterator[str]:
    """Yields a line for each setting of a trainer that HyperparameterTuner would not send."""
    for name in ("remote_debug_config", "infra_check_config", "session_chaining_config"):
        if getattr(trainer, f"_{name}", None):
            yield f"with_{name}: HyperparameterTuner drops it; tune with a trainer without it"
    for group in ("compute", "networking"):
        settings = getattr(trainer, group)
        for name, value in settings.model_dump().items() if settings else ():
            if name not in _TUNED and value:
                remedy = "HyperparameterTuner drops it; set it to None to tune without it"
                yield f"trainer.{group}.{name}={value}: {remedy}"


def _is_minimized(metric: str) -> bool:
    """Returns whether smaller values of a metric are better; own metrics are maximized."""
    lower = {f"validation:{each.name}" for each in ALL_METRICS if not each.higher_is_better}
    return metric in lower | {"train:loss", "train:data_wait_pct"}


def _arguments(request: dict[str, Any]) -> dict[str, Any]:
    """Arguments that make ModelTrainer send the request."""
    from sagemaker.train import configs

    algorithm = request["AlgorithmSpecification"]
    vpc = request.get("VpcConfig", {})
    stopping, checkpoints = request.get("StoppingCondition"), request.get("CheckpointConfig")
    return {
        "training_image": algorithm["TrainingImage"],
        "training_input_mode": algorithm["TrainingInputMode"],
        "role": request["RoleArn"],
        "compute": configs.Compute(
            **{"volume_size_in_gb": None, **_snake(request["ResourceConfig"])},
            enable_managed_spot_training=request.get("EnableManagedSpotTraining"),
        ),
        "networking": configs.Networking(
            security_group_ids=vpc.get("SecurityGroupIds"),
            subnets=vpc.get("Subnets"),
            enable_network_isolation=request.get("EnableNetworkIsolation"),
            enable_inter_container_traffic_encryption=request.get(
                "EnableInterContainerTrafficEncryption"
            ),
        ),
        "stopping_condition": configs.StoppingCondition(**_snake(stopping)) if stopping else None,
        "checkpoint_config": (
            configs.CheckpointConfig(**_snake(checkpoints)) if checkpoints else None
        ),
        "output_data_config": configs.OutputDataConfig(**_snake(request["OutputDataConfig"])),
        # Channel, not InputData: the latter has no input mode and becomes File.
        "input_data_config": [
            configs.Channel(**_snake(channel)) for channel in request.get("InputDataConfig", [])
        ],
        "environment": request.get("Environment", {}),
        "hyperparameters": request.get("HyperParameters", {}),
        "tags": [configs.Tag(**_snake(tag)) for tag in request.get("Tags", [])] or None,
    }


def _snake(value: Any) -> Any:
    """Returns the value with member names as SDK v3 spells them: `S3Uri` -> `s3_uri`."""
    from sagemaker.core.utils.code_injection.codec import pascal_to_snake

    if isinstance(value, dict):
        return {pascal_to_snake(key): _snake(member) for key, member in value.items()}
    return [_snake(member) for member in value] if isinstance(value, list) else value
