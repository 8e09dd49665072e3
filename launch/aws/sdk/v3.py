"""Training jobs with the ModelTrainer of SDK v3."""

from typing import Any

from pydantic import PrivateAttr
from sagemaker.core.helper.session_helper import Session
from sagemaker.core.utils.code_injection.codec import pascal_to_snake
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import (
    Channel,
    CheckpointConfig,
    Compute,
    InputData,
    MetricDefinition,
    Networking,
    OutputDataConfig,
    RemoteDebugConfig,
    RetryStrategy,
    StoppingCondition,
    Tag,
    TensorBoardOutputConfig,
)

from launch.aws.sdk.plain_defaults import plain_defaults
from launch.aws.training_spec import TrainingJobs

# Members whose keys are names of the user's.
_MAPS = ("Environment", "HyperParameters", "StaticHyperParameters")


class BoundTrainer(ModelTrainer):
    """ModelTrainer whose channels are bound; each job has a new name and its own checkpoints."""

    _jobs: TrainingJobs = PrivateAttr()

    @property
    def bound_jobs(self) -> TrainingJobs:
        return self._jobs

    def train(
        self,
        input_data_config: list[Channel | InputData] | None = None,
        wait: bool | None = True,
        logs: bool | None = True,
        dry_run: bool = False,
    ) -> None:
        """Start a job, with the bound channels; see ModelTrainer.train."""
        with plain_defaults():
            super().train(input_data_config, wait, logs, dry_run)

    def _create_training_job_args(
        self, input_data_config: list[Channel | InputData] | None = None, boto3: bool = False
    ) -> dict[str, Any]:
        request = self._jobs.renew()
        if "CheckpointConfig" in request:
            self.checkpoint_config = CheckpointConfig(**snake(request["CheckpointConfig"]))
        if "TensorBoardOutputConfig" in request:
            config = TensorBoardOutputConfig(**snake(request["TensorBoardOutputConfig"]))
            self.with_tensorboard_output_config(config)
        arguments: dict[str, Any] = super()._create_training_job_args(input_data_config, boto3)
        name = "TrainingJobName" if boto3 else "training_job_name"
        return {**arguments, name: request["TrainingJobName"]}


def bind(jobs: TrainingJobs, defaults: dict[str, Any]) -> BoundTrainer:
    """The trainer of these jobs; `defaults` replaces the SDK's config."""
    request = jobs.request
    session = Session(boto_session=jobs.session, sagemaker_config=defaults)
    trainer = BoundTrainer(
        **trainer_arguments(request),
        base_job_name=jobs.spec.config.job.base_name,
        sagemaker_session=session,
    )
    trainer._jobs = jobs
    metrics = request["AlgorithmSpecification"]["MetricDefinitions"]
    trainer.with_metric_definitions([MetricDefinition(**snake(metric)) for metric in metrics])
    if "RemoteDebugConfig" in request:
        trainer.with_remote_debug_config(RemoteDebugConfig(enable_remote_debug=True))
    if "InfraCheckConfig" in request:
        trainer.with_infra_check_config()
    if "SessionChainingConfig" in request:
        trainer.with_session_chaining_config()
    if "RetryStrategy" in request:
        trainer.with_retry_strategy(RetryStrategy(**snake(request["RetryStrategy"])))
    return trainer


def trainer_arguments(request: dict[str, Any]) -> dict[str, Any]:
    """Arguments that make the ModelTrainer send the request."""
    algorithm = request["AlgorithmSpecification"]
    vpc = request.get("VpcConfig")
    return {
        "training_image": algorithm["TrainingImage"],
        "training_input_mode": algorithm["TrainingInputMode"],
        "role": request["RoleArn"],
        "compute": Compute(
            **snake(request["ResourceConfig"]),
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
        "stopping_condition": StoppingCondition(**snake(request["StoppingCondition"])),
        "output_data_config": OutputDataConfig(**snake(request["OutputDataConfig"])),
        "input_data_config": [Channel(**snake(c)) for c in request.get("InputDataConfig", [])],
        "environment": request.get("Environment", {}),
        "hyperparameters": request.get("HyperParameters", {}),
        "tags": [Tag(**snake(tag)) for tag in request.get("Tags", [])] or None,
    }


def snake(value: Any) -> Any:
    """The value with member names as SDK v3 spells them: `S3Uri` -> `s3_uri`."""
    if isinstance(value, dict):
        return {
            pascal_to_snake(key): member if key in _MAPS else snake(member)
            for key, member in value.items()
        }
    if isinstance(value, list):
        return [snake(member) for member in value]
    return value
