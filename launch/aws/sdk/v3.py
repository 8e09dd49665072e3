"""Sends a request with the ModelTrainer of SDK v3."""

from typing import Any

from sagemaker.core.helper.session_helper import Session
from sagemaker.core.utils.code_injection.codec import pascal_to_snake
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import (
    Channel,
    CheckpointConfig,
    Compute,
    MetricDefinition,
    Networking,
    OutputDataConfig,
    RetryStrategy,
    StoppingCondition,
    Tag,
    TensorBoardOutputConfig,
)


class _NamedTrainer(ModelTrainer):
    """ModelTrainer that uses the job's name as given; the original appends the time."""

    def _create_training_job_args(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        arguments: dict[str, Any] = super()._create_training_job_args(*args, **kwargs)
        return {**arguments, "training_job_name": self.base_job_name}


def send(request: dict[str, Any], session: Any, defaults: dict[str, Any]) -> None:
    """Create the job; `session` is a boto3 session, `defaults` replaces the SDK's config."""
    trainer = _NamedTrainer(
        **trainer_arguments(request),
        sagemaker_session=Session(boto_session=session, sagemaker_config=defaults),
    )
    metrics = request["AlgorithmSpecification"]["MetricDefinitions"]
    trainer.with_metric_definitions([MetricDefinition(**_snake(metric)) for metric in metrics])
    if "TensorBoardOutputConfig" in request:
        config = TensorBoardOutputConfig(**_snake(request["TensorBoardOutputConfig"]))
        trainer.with_tensorboard_output_config(config)
    if "RetryStrategy" in request:
        trainer.with_retry_strategy(RetryStrategy(**_snake(request["RetryStrategy"])))
    trainer.train(wait=False, logs=False)


def trainer_arguments(request: dict[str, Any]) -> dict[str, Any]:
    """Arguments that make the ModelTrainer send the request."""
    algorithm = request["AlgorithmSpecification"]
    vpc = request.get("VpcConfig")
    return {
        "base_job_name": request["TrainingJobName"],
        "training_image": algorithm["TrainingImage"],
        "training_input_mode": algorithm["TrainingInputMode"],
        "role": request["RoleArn"],
        "compute": Compute(
            **_snake(request["ResourceConfig"]),
            enable_managed_spot_training=request.get("EnableManagedSpotTraining"),
        ),
        "networking": Networking(
            security_group_ids=vpc and vpc["SecurityGroupIds"],
            subnets=vpc and vpc["Subnets"],
            enable_network_isolation=request.get("EnableNetworkIsolation"),
            enable_inter_container_traffic_encryption=request.get(
                "EnableInterContainerTrafficEncryption"
            ),
        ),
        "stopping_condition": StoppingCondition(**_snake(request["StoppingCondition"])),
        "output_data_config": OutputDataConfig(**_snake(request["OutputDataConfig"])),
        "input_data_config": [Channel(**_snake(c)) for c in request.get("InputDataConfig", [])],
        "checkpoint_config": CheckpointConfig(**_snake(request["CheckpointConfig"]))
        if "CheckpointConfig" in request
        else None,
        "environment": request.get("Environment", {}),
        "hyperparameters": request.get("HyperParameters", {}),
        "tags": [Tag(**_snake(tag)) for tag in request.get("Tags", [])] or None,
    }


def _snake(value: Any) -> Any:
    """The value with member names as SDK v3 spells them: `S3Uri` -> `s3_uri`."""
    if isinstance(value, dict):
        return {pascal_to_snake(key): _snake(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_snake(member) for member in value]
    return value
