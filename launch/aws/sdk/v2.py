"""Training jobs with the Estimator of SDK v2."""

from typing import Any

from sagemaker.debugger import TensorBoardOutputConfig
from sagemaker.estimator import Estimator
from sagemaker.inputs import TrainingInput
from sagemaker.instance_group import InstanceGroup
from sagemaker.session import Session

from launch.aws.sdk.plain_defaults import plain_defaults
from launch.aws.training_spec import TrainingJobs


class BoundEstimator(Estimator):
    """Estimator whose channels are bound; each job has a new name and its own checkpoints."""

    def __init__(self, jobs: TrainingJobs, defaults: dict[str, Any]) -> None:
        session = Session(boto_session=jobs.session, sagemaker_config=defaults)
        super().__init__(
            **estimator_arguments(jobs.request),
            base_job_name=jobs.spec.config.job.base_name,
            sagemaker_session=session,
        )
        channels = jobs.request.get("InputDataConfig", [])
        self._bound_jobs = jobs
        self._bound_channels = {channel["ChannelName"]: _input(channel) for channel in channels}

    def fit(
        self,
        inputs: Any = None,
        wait: bool = True,
        logs: Any = "All",
        job_name: str | None = None,
        experiment_config: dict[str, str] | None = None,
    ) -> None:
        """Start a job, with the bound channels unless there are `inputs`; see Estimator.fit."""
        inputs = inputs or self._bound_channels or None
        with plain_defaults():
            super().fit(inputs, wait, logs, job_name, experiment_config)

    def _prepare_for_training(self, job_name: str | None = None) -> None:
        request = self._bound_jobs.renew(job_name)
        self.checkpoint_s3_uri = request.get("CheckpointConfig", {}).get("S3Uri")
        self.tensorboard_output_config = _tensorboard(request)
        super()._prepare_for_training(request["TrainingJobName"])

    def _prepare_profiler_for_training(self) -> None:
        """Send no profiler config; the original sends a disabled one."""
        self.profiler_config = None
        self.profiler_rule_configs: list[Any] = []


bind = BoundEstimator


def estimator_arguments(request: dict[str, Any]) -> dict[str, Any]:
    """Arguments that make the Estimator send the request, without its own additions."""
    algorithm, resources = request["AlgorithmSpecification"], request["ResourceConfig"]
    stopping, output = request["StoppingCondition"], request["OutputDataConfig"]
    vpc, checkpoints = request.get("VpcConfig", {}), request.get("CheckpointConfig", {})
    groups = [
        InstanceGroup(group["InstanceGroupName"], group["InstanceType"], group["InstanceCount"])
        for group in resources.get("InstanceGroups", [])
    ]
    return {
        "image_uri": algorithm["TrainingImage"],
        "input_mode": algorithm["TrainingInputMode"],
        "metric_definitions": algorithm["MetricDefinitions"],
        "role": request["RoleArn"],
        "instance_type": resources.get("InstanceType"),
        "instance_count": resources.get("InstanceCount"),
        "instance_groups": groups or None,
        "volume_size": resources["VolumeSizeInGB"],
        "volume_kms_key": resources.get("VolumeKmsKeyId"),
        "keep_alive_period_in_seconds": resources.get("KeepAlivePeriodInSeconds"),
        "max_run": stopping["MaxRuntimeInSeconds"],
        "max_wait": stopping.get("MaxWaitTimeInSeconds"),
        "use_spot_instances": request.get("EnableManagedSpotTraining", False),
        "checkpoint_local_path": checkpoints.get("LocalPath"),
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
        "max_retry_attempts": request.get("RetryStrategy", {}).get("MaximumRetryAttempts"),
        "disable_profiler": True,
        "debugger_hook_config": False,
    }


def _tensorboard(request: dict[str, Any]) -> TensorBoardOutputConfig | None:
    config = request.get("TensorBoardOutputConfig")
    return config and TensorBoardOutputConfig(config["S3OutputPath"], config["LocalPath"])


def _input(channel: dict[str, Any]) -> TrainingInput:
    source = channel["DataSource"]["S3DataSource"]
    return TrainingInput(
        s3_data=source["S3Uri"],
        distribution=source["S3DataDistributionType"],
        s3_data_type=source["S3DataType"],
        input_mode=channel["InputMode"],
        instance_groups=source.get("InstanceGroupNames"),
    )
