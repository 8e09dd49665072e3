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
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from entry_point.job.program import UserError
from launch.sagemaker.aws import open_session
from launch.sagemaker.checks import require_valid
from launch.sagemaker.plan import Plan, plan, upload_code
from launch.sagemaker.training_request import BASE_NAME

if TYPE_CHECKING:
    from sagemaker.train import ModelTrainer

# Replaces the SDK's defaults files: nothing is added to a request, and no telemetry is sent.
_PLAIN = {
    "SchemaVersion": "1.0",
    "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}},
}
# SDK v3 validates the role with IAM calls that the user may not be allowed to make.
_QUIET = {"SAGEMAKER_VALIDATE_ROLE": "false"}
# Members of CreateTrainingJob for which ModelTrainer has an argument or a method.
_ARGUMENTS = ("StoppingCondition", "CheckpointConfig", "OutputDataConfig")
_METHODS = {
    "TensorBoardOutputConfig": "with_tensorboard_output_config",
    "RetryStrategy": "with_retry_strategy",
    "InfraCheckConfig": "with_infra_check_config",
    "RemoteDebugConfig": "with_remote_debug_config",
    "SessionChainingConfig": "with_session_chaining_config",
}
_NETWORK = ("EnableNetworkIsolation", "EnableInterContainerTrafficEncryption")
_OTHERS = (
    *("TrainingJobName", "AlgorithmSpecification", "RoleArn", "ResourceConfig", "VpcConfig"),
    *("EnableManagedSpotTraining", "InputDataConfig", "Environment", "HyperParameters", "Tags"),
)
_OF_ALGORITHM = ("TrainingImage", "TrainingInputMode", "MetricDefinitions")


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
    try:
        from sagemaker.core.helper.session_helper import Session
        from sagemaker.core.workflow.pipeline_context import PipelineSession
        from sagemaker.train import ModelTrainer, configs
    except ModuleNotFoundError:
        raise UserError(
            "SDK v3 of SageMaker is not installed in this environment: %pip install "
            "'sagemaker>=3.21,<4'; for SDK v2 see examples/estimator_v2.py"
        ) from None
    boto_session = session.boto_session if session else open_session()
    in_pipeline = isinstance(session, PipelineSession)
    planned = plan(overrides, boto_session, for_sdk=True, in_pipeline=in_pipeline)
    require_valid(planned, boto_session)
    _require_arguments(planned.request)
    upload_code(planned, boto_session)
    session = session or Session(boto_session=boto_session, sagemaker_config=_PLAIN)
    session.sagemaker_config = _PLAIN
    arguments = _arguments(planned, in_pipeline)
    # Afterwards, the caller's other use of the SDK keeps its own settings.
    with patch.dict(os.environ, _QUIET):
        t = ModelTrainer(**arguments, sagemaker_session=session)
    metrics = planned.request["AlgorithmSpecification"].get("MetricDefinitions", [])
    t.with_metric_definitions([configs.MetricDefinition(**_snake(metric)) for metric in metrics])
    for member, method in _METHODS.items():
        if member in planned.request:
            getattr(t, method)(getattr(configs, member)(**_snake(planned.request[member])))
    return t


def _require_arguments(request: dict[str, Any]) -> None:
    """Raise UserError for each member of a request that ModelTrainer would not send."""
    lost = request.keys() - {*_ARGUMENTS, *_METHODS, *_NETWORK, *_OTHERS}
    inside = request["AlgorithmSpecification"].keys() - {*_OF_ALGORITHM}
    if lost or inside:
        members = [*sorted(lost), *(f"AlgorithmSpecification.{name}" for name in sorted(inside))]
        remedy = "ModelTrainer has no argument for it; drop it, or use `make sagemaker-train`"
        raise UserError(*(f"job.request.{member}: {remedy}" for member in members))


def _arguments(planned: Plan, in_pipeline: bool) -> dict[str, Any]:
    """Returns the arguments that make ModelTrainer send the request."""
    from sagemaker.core.workflow.execution_variables import ExecutionVariables
    from sagemaker.core.workflow.functions import Join
    from sagemaker.train import configs

    request, algorithm = planned.request, planned.request["AlgorithmSpecification"]
    made = {
        _snake_name(member): getattr(configs, member)(**_snake(request[member]))
        for member in _ARGUMENTS
        if member in request
    }
    if in_pipeline and "checkpoint_config" in made and not planned.config.resume_from:
        values = [request["CheckpointConfig"]["S3Uri"], ExecutionVariables.PIPELINE_EXECUTION_ID]
        made["checkpoint_config"].s3_uri = Join(on="/", values=values)
    network = {**request.get("VpcConfig", {}), **{k: request[k] for k in _NETWORK if k in request}}
    # Channel, not InputData: the latter has no input mode and becomes File.
    channels = [configs.Channel(**_snake(each)) for each in request.get("InputDataConfig", [])]
    return {
        **made,
        # The SDK adds the time, and cuts what is longer than SageMaker takes.
        "base_job_name": (planned.config.job.name or BASE_NAME)[:48],
        "training_image": algorithm["TrainingImage"],
        "training_input_mode": algorithm["TrainingInputMode"],
        "role": request["RoleArn"],
        "compute": configs.Compute(
            **{"volume_size_in_gb": None, **_snake(request["ResourceConfig"])},
            enable_managed_spot_training=request.get("EnableManagedSpotTraining"),
        ),
        "networking": configs.Networking(**_snake(network)),
        "input_data_config": channels,
        "environment": request.get("Environment", {}),
        "hyperparameters": request.get("HyperParameters", {}),
        "tags": [configs.Tag(**_snake(tag)) for tag in request.get("Tags", [])] or None,
    }


def _snake_name(member: str) -> str:
    from sagemaker.core.utils.code_injection.codec import pascal_to_snake

    name: str = pascal_to_snake(member)
    return name


def _snake(value: Any) -> Any:
    """Returns the value with member names as SDK v3 spells them: `S3Uri` -> `s3_uri`."""
    if isinstance(value, dict):
        return {_snake_name(key): _snake(member) for key, member in value.items()}
    return [_snake(member) for member in value] if isinstance(value, list) else value
