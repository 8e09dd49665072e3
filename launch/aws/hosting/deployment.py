"""The command line of a deployment: the training job, its model, the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from entry_point.config.compose import check_config, compose_plain, parse_overrides
from launch.command_line import LaunchError
from launch.request.hosting.trained_model import TrainedModel
from launch.sagemaker.aws import is_dry_run, open_session
from launch.sagemaker.config import LaunchConfig, load_launch_config, opened, split_names
from launch.sagemaker.jobs import find_job

T = TypeVar("T")


@dataclass(frozen=True)
class Deployment(Generic[T]):
    """What the command line asks for, and the model of the job that it names."""

    model: TrainedModel
    config: T
    launch: LaunchConfig
    session: Any
    """A boto3 session; None in a dry run."""

    @property
    def region(self) -> str | None:
        return self.session.region_name if self.session else self.launch.job.region


def load(name: str, schema: type[T], arguments: Sequence[str]) -> Deployment[T]:
    """Read `JOB [overrides]`: those of configs/NAME.yaml and of configs/launch.yaml.

    A dry run asks AWS nothing: it takes image, role and output from the launch config.
    """
    jobs, overrides = split_names(arguments)
    if len(jobs) != 1:
        raise LaunchError(
            f"{' '.join(jobs) or 'no job given'}: must be the name of one training job; "
            "`make sagemaker ARGS=status` lists the latest"
        )
    launch, others = load_launch_config(overrides)
    plain = compose_plain(name, [opened(each) for each in parse_overrides(others)])
    config = check_config(plain, schema, others)
    if is_dry_run():
        return Deployment(TrainedModel.planned(jobs[0], launch), config, launch, None)
    session = open_session(launch.job.region)
    job, description = find_job(session, jobs[0])
    if job.kind != "Training":
        raise LaunchError(f"{jobs[0]}: is a {job.kind} job, and only training jobs leave a model")
    return Deployment(TrainedModel.of(description), config, launch, session)
