"""Sends a request with the Estimator of SDK v2."""

from typing import Any

from sagemaker.debugger import TensorBoardOutputConfig
from sagemaker.estimator import Estimator
from sagemaker.inputs import TrainingInput
from sagemaker.instance_group import InstanceGroup
from sagemaker.session import Session


class _PlainEstimator(Estimator):
    """Estimator that sends no profiler config; the original sends a disabled one."""

    def _prepare_profiler_for_training(self) -> None:
        self.profiler_config = None
        self.profiler_rule_configs: list[Any] = []


def send(request: dict[str, Any], session: Any, defaults: dict[str, Any]) -> None:
    """Create the job; `session` is a boto3 session, `defaults` replaces the SDK's config."""
    estimator = _PlainEstimator(
        **estimator_arguments(request),
        sagemaker_session=Session(boto_session=session, sagemaker_config=defaults),
    )
    inputs = {
        channel["ChannelName"]: _input(channel) for channel in request.get("InputDataConfig", [])
    }
    estimator.fit(inputs or None, job_name=request["TrainingJobName"], wait=False, logs=False)


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
        "checkpoint_s3_uri": checkpoints.get("S3Uri"),
        "checkpoint_local_path": checkpoints.get("LocalPath"),
        "output_path": output["S3OutputPath"],
        "output_kms_key": output.get("KmsKeyId"),
        "tensorboard_output_config": _tensorboard(request),
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
