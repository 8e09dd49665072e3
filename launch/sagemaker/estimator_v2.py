"""Training jobs with the Estimator of SDK v2, whose support ends on 2027-07-06."""

import copy
from typing import Any

from sagemaker.debugger import TensorBoardOutputConfig
from sagemaker.estimator import Estimator
from sagemaker.inputs import FileSystemInput, TrainingInput
from sagemaker.session import Session
from sagemaker.workflow.execution_variables import ExecutionVariables
from sagemaker.workflow.functions import Join
from sagemaker.workflow.pipeline_context import PipelineSession

from entry_point.contract.program import UserError
from launch.sagemaker.config import Job
from launch.sagemaker.training import TrainingSpec
from launch.sagemaker.training_request import BASE_NAME, JOB
from launch.sagemaker.training_request import job_name as new_name


class NamedEstimator(Estimator):
    """Estimator whose channels are bound, and whose jobs have new names and checkpoints.

    `inputs` are the bound channels by name; change them before `fit()`.
    """

    job: Job
    inputs: dict[str, Any]
    # The SDK's own.
    checkpoint_s3_uri: Any
    checkpoint_local_path: Any
    instance_type: Any
    tensorboard_output_config: Any
    latest_training_job: Any
    _current_job_name: Any

    def fit(
        self,
        inputs: Any = None,
        wait: bool = True,
        logs: Any = "All",
        job_name: str | None = None,
        experiment_config: dict[str, str] | None = None,
    ) -> Any:
        """Start a job with the bound channels unless there are `inputs`; see Estimator.fit."""
        name = job_name or new_name(self.job, self.base_job_name)
        # The next job gets its own prefixes. In a pipeline, the SDK reads the object when it
        # writes the definition, perhaps twice.
        starting = copy.copy(self)
        starting._fill_in(name)
        parent: Any = super(NamedEstimator, starting)
        try:
            return parent.fit(inputs or self.inputs or None, wait, logs, name, experiment_config)
        finally:
            self.latest_training_job = starting.latest_training_job
            self._current_job_name = starting._current_job_name

    def _fill_in(self, name: str) -> None:
        """Replace JOB in S3 prefixes; the SDK's local mode refuses checkpoints."""
        if str(self.instance_type).startswith("local"):
            self.checkpoint_s3_uri = self.checkpoint_local_path = None

        def filled(prefix: Any) -> Any:
            if not isinstance(prefix, str) or JOB not in prefix:
                return prefix
            if not isinstance(self.sagemaker_session, PipelineSession):
                return prefix.replace(JOB, name)
            before, _, after = prefix.partition(JOB)
            execution = ExecutionVariables.PIPELINE_EXECUTION_ID
            return Join(on="", values=[before, name, "/", execution, after])

        self.checkpoint_s3_uri = filled(self.checkpoint_s3_uri)
        if board := self.tensorboard_output_config:
            self.tensorboard_output_config = TensorBoardOutputConfig(
                filled(board.s3_output_path), board.container_local_output_path
            )

    def _prepare_profiler_for_training(self) -> None:
        """Send no profiler config; the original sends a disabled one."""
        self.profiler_config = None
        self.profiler_rule_configs: list[Any] = []


def estimator(
    spec: TrainingSpec, boto_session: Any, session: Any, defaults: dict[str, Any]
) -> NamedEstimator:
    """The estimator of a spec; `defaults` replaces the SDK's config files.

    `session` is one of the SDK's; None: a new one of `boto_session`. Raises UserError for what
    only v3 sends.
    """
    job = spec.config.job
    if job.request:
        raise UserError(
            f"job.request={job.request}: SageMaker SDK v2 cannot send it; use v3, or "
            "`make sagemaker-train`"
        )
    session = session or Session(boto_session=boto_session, sagemaker_config=defaults)
    session.sagemaker_config = defaults
    request = spec.shared_request()
    e = NamedEstimator(
        **estimator_arguments(request), base_job_name=BASE_NAME, sagemaker_session=session
    )
    channels = request.get("InputDataConfig", [])
    e.job, e.inputs = job, {channel["ChannelName"]: _input(channel) for channel in channels}
    return e


def estimator_arguments(request: dict[str, Any]) -> dict[str, Any]:
    """Arguments that make the Estimator send the request, without its own additions."""
    algorithm, resources = request["AlgorithmSpecification"], request["ResourceConfig"]
    stopping, output = request["StoppingCondition"], request["OutputDataConfig"]
    vpc, checkpoints = request.get("VpcConfig", {}), request.get("CheckpointConfig", {})
    return {
        "image_uri": algorithm["TrainingImage"],
        "input_mode": algorithm["TrainingInputMode"],
        "metric_definitions": algorithm["MetricDefinitions"],
        "role": request["RoleArn"],
        "instance_type": resources.get("InstanceType"),
        "instance_count": resources.get("InstanceCount"),
        "volume_size": resources["VolumeSizeInGB"],
        "volume_kms_key": resources.get("VolumeKmsKeyId"),
        "keep_alive_period_in_seconds": resources.get("KeepAlivePeriodInSeconds"),
        "max_run": stopping["MaxRuntimeInSeconds"],
        "max_wait": stopping.get("MaxWaitTimeInSeconds"),
        "use_spot_instances": request.get("EnableManagedSpotTraining", False),
        "checkpoint_s3_uri": checkpoints.get("S3Uri"),
        "checkpoint_local_path": checkpoints.get("LocalPath"),
        "tensorboard_output_config": _tensorboard(request),
        "output_path": output["S3OutputPath"],
        "output_kms_key": output.get("KmsKeyId"),
        "hyperparameters": request.get("HyperParameters"),
        "environment": request.get("Environment"),
        "tags": request.get("Tags"),
        "subnets": vpc.get("Subnets"),
        "security_group_ids": vpc.get("SecurityGroupIds"),
        "encrypt_inter_container_traffic": request.get(
            "EnableInterContainerTrafficEncryption", False
        ),
        "enable_network_isolation": request.get("EnableNetworkIsolation", False),
        "disable_profiler": True,
        "debugger_hook_config": False,
    }


def _tensorboard(request: dict[str, Any]) -> TensorBoardOutputConfig | None:
    config = request.get("TensorBoardOutputConfig")
    return config and TensorBoardOutputConfig(config["S3OutputPath"], config["LocalPath"])


def _input(channel: dict[str, Any]) -> TrainingInput | FileSystemInput:
    if folder := channel["DataSource"].get("FileSystemDataSource"):
        source = FileSystemInput(
            folder["FileSystemId"],
            folder["FileSystemType"],
            folder["DirectoryPath"],
            folder.get("FileSystemAccessMode", "ro"),
        )
        source.config["InputMode"] = channel["InputMode"]  # not an argument
        return source
    prefix = channel["DataSource"]["S3DataSource"]
    return TrainingInput(
        s3_data=prefix["S3Uri"],
        distribution=prefix["S3DataDistributionType"],
        s3_data_type=prefix["S3DataType"],
        input_mode=channel["InputMode"],
    )
