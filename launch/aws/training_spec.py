"""What a launch trains, and the checked request for each job that it starts."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from entry_point.contract.own_code import CHANNEL
from launch.aws.s3 import send_code
from launch.request import job_config, training_checks, training_request
from launch.request.code.code_channel import with_code
from launch.request.code.code_files import OwnCode, collect
from launch.request.launch_config import LaunchConfig
from launch.request.launch_overrides import load_launch_config


@dataclass(frozen=True)
class TrainingSpec:
    """A launch config, the job's own overrides, and the code that goes along, if any."""

    config: LaunchConfig
    overrides: list[str]
    code: OwnCode | None

    def request(self, region: str | None, name: str | None = None) -> dict[str, Any]:
        """The checked request for a job; None: with `job.name`, or a new name.

        Raises LaunchError with one line for each problem. Makes no AWS call.
        """
        job, target = self.config.job, self.config.target
        name = name or training_request.job_name(job, datetime.now(UTC))
        metrics = job_config.own_metrics(self.overrides)
        request = training_request.build(self.config, self.overrides, name, metrics)
        problems = job_config.training_problems(self.overrides, job.channels, target)
        problems = [*problems, *job_config.logger_problems(self.overrides, job.mlflow)]
        problems += job_config.sharding_problems(self.overrides, job.channels, target)
        training_checks.check(request, self.config, region, problems)
        return request

    def shared_request(self) -> dict[str, Any]:
        """The request of jobs that get their names later: JOB stands for the name in prefixes.

        Without `job.request`, which is merged into what is sent.
        """
        config = replace(self.config, job=replace(self.config.job, request={}))
        metrics = job_config.own_metrics(self.overrides)
        return training_request.build(config, self.overrides, training_request.JOB, metrics)

    def upload_code(self, session: Any) -> None:
        """Send the code that goes along, if any, unless S3 has it."""
        if self.code:
            send_code(self.code, self.config.job.channels[CHANNEL].s3 or "", session)

    def with_checkpoints(self, uri: str) -> "TrainingSpec":
        """The spec of jobs that use the checkpoints below this S3 prefix."""
        job = replace(self.config.job, checkpoints=uri)
        return replace(self, config=replace(self.config, job=job))


def load_spec(arguments: Sequence[str]) -> TrainingSpec:
    """Read the overrides of a launch, and the code that `job.code=true` sends.

    Writes a line to stderr for each file of it that is left out. Raises ConfigError, LaunchError.
    """
    config, overrides = load_launch_config(arguments)
    if not config.job.code:
        return TrainingSpec(config, overrides, None)
    code = collect()
    sys.stderr.writelines(f"{line}\n" for line in code.left_out)
    return TrainingSpec(with_code(config, code), overrides, code)
