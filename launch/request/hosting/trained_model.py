"""What a training job leaves for hosting: its image, its model and its role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from launch.command_line import LaunchError
from launch.sagemaker.checks import HINTS, is_gpu, refusals, registry_problems
from launch.sagemaker.config import LaunchConfig, Target
from launch.sagemaker.training_request import drop_empty

_DEFAULT_INSTANCES = {True: "ml.g6.xlarge", False: "ml.c7i.xlarge"}
_LONGEST_NAME = 63


@dataclass(frozen=True)
class TrainedModel:
    """The model of a training job, with what that job already had the right to use."""

    job: str
    image: str | None
    artifacts: str | None
    """S3 URI of model.tar.gz."""
    role: str | None
    on_gpu: bool
    """Whether the job trained on GPUs, and its image is thus built for them."""
    vpc: dict[str, Any] = field(default_factory=dict)
    is_isolated: bool = False

    @classmethod
    def of(cls, description: dict[str, Any]) -> TrainedModel:
        """The model of a job, from SageMaker's description; raises LaunchError if it has none."""
        job, resources = description["TrainingJobName"], description["ResourceConfig"]
        artifacts = description.get("ModelArtifacts", {}).get("S3ModelArtifacts")
        if not artifacts:
            raise LaunchError(f"{job}: has no model, the job is {description['TrainingJobStatus']}")
        types = [
            machines.get("InstanceType", "")
            for machines in (resources, *resources.get("InstanceGroups", []))
        ]
        return cls(
            job=job,
            image=description["AlgorithmSpecification"]["TrainingImage"],
            artifacts=artifacts,
            role=description["RoleArn"],
            on_gpu=any(map(is_gpu, types)),
            vpc=description.get("VpcConfig", {}),
            is_isolated=description.get("EnableNetworkIsolation", False),
        )

    @classmethod
    def planned(cls, job: str, config: LaunchConfig) -> TrainedModel:
        """The model that a job with the launch config leaves, as far as it is known without AWS."""
        settings = config.job
        output = settings.output and settings.output.rstrip("/")
        return cls(
            job=job,
            image=config.target.image,
            artifacts=output and f"{output}/{job}/output/model.tar.gz",
            role=settings.role,
            on_gpu=config.target.device == "gpu",
            vpc={"SecurityGroupIds": settings.security_groups, "Subnets": settings.subnets},
            is_isolated=settings.network_isolation,
        )

    @property
    def target(self) -> Target:
        """The image, and the device that it was built for."""
        return Target(image=self.image, device="gpu" if self.on_gpu else "cpu")

    def machines(self, instance_type: str | None) -> str:
        """The instance type, or the default for the image."""
        return instance_type or _DEFAULT_INSTANCES[self.on_gpu]

    def request(
        self, name: str, environment: dict[str, str], tags: dict[str, str]
    ) -> dict[str, Any]:
        """The CreateModel request; settings that are missing are left out."""
        return drop_empty(
            {
                "ModelName": name,
                "ExecutionRoleArn": self.role,
                "PrimaryContainer": {
                    "Image": self.image,
                    "ModelDataUrl": self.artifacts,
                    "Environment": environment,
                },
                "VpcConfig": self.vpc,
                "EnableNetworkIsolation": self.is_isolated or None,
                "Tags": tag_list(tags),
            }
        )

    def problems(self, instance_type: str | None, region: str | None) -> Iterator[str]:
        """What is missing or wrong, and how the image fits the instance type."""
        yield from registry_problems(self.target, region)
        for key, value in {"job.role": self.role, "job.output": self.artifacts}.items():
            if not value:
                yield f"{key} is missing; {HINTS[key]}"
        if instance_type and is_gpu(instance_type) and not self.on_gpu:
            yield (
                f"instance_type={instance_type}: must be a CPU type, as {self.job} trained on CPUs "
                "and its image is built for them"
            )


def raise_problems(found: list[str], requests: dict[str, dict[str, Any]]) -> None:
    """Raise LaunchError with the first of these problems, or of the service's, for each key."""
    # The last request holds the names that the user gave, those before it names made of them.
    for operation, request in reversed(requests.items()):
        found += refusals(request, operation)
    first: dict[str, str] = {}
    for line in found:
        first.setdefault(re.split("[=: ]", line)[0], line)
    if first:
        raise LaunchError(*first.values())


def tag_list(tags: dict[str, str]) -> list[dict[str, str]]:
    """Tags as the service takes them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def stamped(name: str, now: datetime) -> str:
    """A name of its own for each deployment: the name, shortened if need be, and the time."""
    stamp = f"-{now:%y%m%d-%H%M%S}"
    return name[: _LONGEST_NAME - len(stamp)].rstrip("-") + stamp


def is_stamped(name: str) -> bool:
    """Whether `stamped` may have made the name; what has another belongs to somebody else."""
    return re.search(r"-\d{6}-\d{6}$", name) is not None
