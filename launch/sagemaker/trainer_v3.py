"""Training jobs with the ModelTrainer of SDK v3."""

from typing import Any

from pydantic import PrivateAttr
from sagemaker.core.helper.session_helper import Session
from sagemaker.core.utils.code_injection.codec import pascal_to_snake
from sagemaker.core.workflow.execution_variables import ExecutionVariables
from sagemaker.core.workflow.functions import Join
from sagemaker.core.workflow.pipeline_context import PipelineSession
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import (
    Channel,
    CheckpointConfig,
    Compute,
    InputData,
    MetricDefinition,
    Networking,
    OutputDataConfig,
    StoppingCondition,
    Tag,
    TensorBoardOutputConfig,
)
from sagemaker.train.model_trainer import Mode

from launch.sagemaker.config import Job
from launch.sagemaker.training import TrainingSpec
from launch.sagemaker.training_request import BASE_NAME, JOB, job_name, merged

# Members whose keys are names of the user's.
_MAPS = ("Environment", "HyperParameters")


class NamedTrainer(ModelTrainer):
    """ModelTrainer whose jobs have new names, their own checkpoints, and `job.request`."""

    _job: Job = PrivateAttr()
    _step: str | None = PrivateAttr(None)

    def train(self, *arguments: Any, **options: Any) -> Any:
        """Start a job, or return the arguments of a pipeline's step; see ModelTrainer.train."""
        if not isinstance(self.sagemaker_session, PipelineSession):
            return super().train(*arguments, **options)
        # The SDK reads the object when it writes the pipeline's definition, which may be twice.
        step = self.model_copy()
        step._step = self._new_name()
        return super(NamedTrainer, step).train(*arguments, **options)

    def _create_training_job_args(
        self, input_data_config: list[Channel | InputData] | None = None, boto3: bool = False
    ) -> dict[str, Any]:
        if self.training_mode == Mode.LOCAL_CONTAINER:
            local: dict[str, Any] = super()._create_training_job_args(input_data_config, boto3)
            return local
        built = super()._create_training_job_args(input_data_config, boto3=True)
        request = merged(merged(built, {}), self._job.request)
        if self._step:  # every execution of the pipeline is a job with its own name
            return _filled(request, self._step, "/", ExecutionVariables.PIPELINE_EXECUTION_ID)
        name = self._new_name()
        request = _filled(request, name) | {"TrainingJobName": name}
        return request if boto3 else snake(request)

    def _new_name(self) -> str:
        return job_name(self._job, self.base_job_name)


def _filled(request: dict[str, Any], *name: Any) -> dict[str, Any]:
    """The request with the parts of the name for JOB in S3 prefixes."""
    filled = {**request}
    for member, key in (("CheckpointConfig", "S3Uri"), ("TensorBoardOutputConfig", "S3OutputPath")):
        prefix = request.get(member, {}).get(key)
        if isinstance(prefix, str) and JOB in prefix:
            before, _, after = prefix.partition(JOB)
            parts = [before, *name, after]
            whole = "".join(parts) if len(name) == 1 else Join(on="", values=parts)
            filled[member] = {**request[member], key: whole}
    return filled


def trainer(
    spec: TrainingSpec, boto_session: Any, session: Any, defaults: dict[str, Any]
) -> NamedTrainer:
    """The trainer of a spec; `defaults` replaces the SDK's config files.

    `session` is one of the SDK's; None: a new one of `boto_session`.
    """
    request = spec.shared_request()
    session = session or Session(boto_session=boto_session, sagemaker_config=defaults)
    session.sagemaker_config = defaults
    t = NamedTrainer(
        **trainer_arguments(request),
        base_job_name=BASE_NAME,
        sagemaker_session=session,
    )
    t._job = spec.config.job
    t.with_tensorboard_output_config(
        TensorBoardOutputConfig(**snake(request["TensorBoardOutputConfig"]))
    )
    metrics = request["AlgorithmSpecification"]["MetricDefinitions"]
    t.with_metric_definitions([MetricDefinition(**snake(metric)) for metric in metrics])
    return t


def trainer_arguments(request: dict[str, Any]) -> dict[str, Any]:
    """Arguments that make the ModelTrainer send the request."""
    algorithm, vpc = request["AlgorithmSpecification"], request.get("VpcConfig")
    checkpoints = request.get("CheckpointConfig")
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
        "checkpoint_config": CheckpointConfig(**snake(checkpoints)) if checkpoints else None,
        # Channel, not InputData: the latter has no input mode and becomes File.
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
