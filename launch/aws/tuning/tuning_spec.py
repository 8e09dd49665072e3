"""What a tuning job tries, and its checked request."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from launch.aws.training_spec import TrainingSpec, load_spec
from launch.request import job_config
from launch.request.launch_errors import LaunchError
from launch.request.launch_overrides import require_job_keys
from launch.request.tuning import tuning_request
from launch.request.tuning.tuning_ranges import Ranges, examples, split_sweep, swept_keys
from launch.request.tuning.tuning_request import Search, chosen_search, tuning_name


@dataclass(frozen=True)
class TuningSpec:
    """The training job of every trial, and how their values are found."""

    training: TrainingSpec
    search: Search

    def request(self, region: str | None, name: str | None = None) -> dict[str, Any]:
        """The checked request of a tuning job; None: with `job.name`, or a new name.

        Raises LaunchError with one line for each problem. Makes no AWS call.
        """
        config = self.training.config
        name = name or tuning_name(config.job, datetime.now(UTC))
        request = tuning_request.build(self.training.request(region, name), self.search)
        tuning_request.check(request, config)
        return request


def load_tuning(arguments: Sequence[str]) -> TuningSpec:
    """Read the overrides of a sweep, and check every value as the job will.

    Raises ConfigError, and LaunchError with one line for each problem.
    """
    fixed, ranges = split_sweep(arguments)
    spec = load_spec(fixed)
    check_values(spec, ranges)
    objective = spec.config.tuning.objective or job_config.tracked_metric(spec.overrides)
    return TuningSpec(spec, chosen_search(spec.config, ranges, objective))


def check_values(spec: TrainingSpec, ranges: Ranges) -> None:
    """Raise ConfigError or LaunchError for a key or value that a trial would end with."""
    require_job_keys(swept_keys(ranges))
    job, target = spec.config.job, spec.config.target
    found: dict[str, None] = {}
    for values in examples(ranges):
        overrides = [*spec.overrides, *values]
        found |= dict.fromkeys(job_config.training_problems(overrides, job.channels, target))
    if found:
        raise LaunchError(*found)
