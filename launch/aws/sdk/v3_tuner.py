"""Tuning jobs with the HyperparameterTuner of SDK v3."""

import json
from datetime import UTC, datetime
from typing import Any

from sagemaker.core.parameter import (
    CategoricalParameter,
    ContinuousParameter,
    IntegerParameter,
    ParameterRange,
)
from sagemaker.core.resources import HyperParameterTuningJob
from sagemaker.train.tuner import HyperparameterTuner

from launch.aws.sdk.plain_defaults import plain_defaults
from launch.aws.sdk.v3 import BoundTrainer, snake
from launch.aws.tuning.tuning_spec import TuningJobs
from launch.request.tuning.tuning_ranges import Ranges
from launch.request.tuning.tuning_request import Search, tuning_name


class BoundTuner(HyperparameterTuner):
    """HyperparameterTuner whose tuning jobs are built and checked like training jobs.

    The channels and metric definitions of the trainer go along; each trial writes its checkpoints
    to a folder of its own.
    """

    def __init__(
        self,
        trainer: BoundTrainer,
        jobs: TuningJobs,
        ranges: dict[str, ParameterRange],
        **options: Any,
    ) -> None:
        self._jobs = jobs
        super().__init__(trainer, hyperparameter_ranges=ranges, **options)

    def tune(self, *arguments: Any, **options: Any) -> None:
        """Start a tuning job with the bound channels; see HyperparameterTuner.tune."""
        with plain_defaults():
            super().tune(*arguments, **options)

    def _prepare_job_name_for_tuning(self, job_name: str | None = None) -> None:
        job = self._jobs.training.spec.config.job
        self._current_job_name = job_name or tuning_name(job, datetime.now(UTC))

    def _start_tuning_job(self, inputs: Any) -> Any:
        del inputs  # the channels are bound
        request = self._jobs.renew(self._search(), self._current_job_name)
        session = self._jobs.training.session
        return HyperParameterTuningJob.create(session=session, **snake(request))

    def _search(self) -> Search:
        return Search(
            ranges=as_ranges(self._hyperparameter_ranges),
            objective=self.objective_metric_name,
            minimize=self.objective_type == "Minimize",
            strategy=self.strategy,
            max_jobs=self.max_jobs,
            parallel=self.max_parallel_jobs,
            early_stopping=self.early_stopping_type == "Auto",
        )


def tuner_of(trainer: BoundTrainer, jobs: TuningJobs, search: Search) -> BoundTuner:
    """The SDK's tuner for a search."""
    return BoundTuner(
        trainer,
        jobs,
        as_parameters(search.ranges),
        objective_metric_name=search.objective,
        objective_type="Minimize" if search.minimize else "Maximize",
        strategy=search.strategy,
        max_jobs=search.max_jobs,
        max_parallel_jobs=search.parallel,
        early_stopping_type="Auto" if search.early_stopping else "Off",
    )


def as_ranges(parameters: dict[str, ParameterRange]) -> Ranges:
    """The SDK's parameters as members of the request."""
    ranges: Ranges = {}
    for name, parameter in parameters.items():
        kind = f"{parameter.__name__}ParameterRanges"
        ranges.setdefault(kind, []).append(parameter.as_tuning_range(name))
    return ranges


def as_parameters(ranges: Ranges) -> dict[str, ParameterRange]:
    """Members of the request as the SDK's parameters."""
    listed = ranges.get("CategoricalParameterRanges", [])
    found: dict[str, ParameterRange] = {
        each["Name"]: CategoricalParameter(each["Values"]) for each in listed
    }
    for kind in (ContinuousParameter, IntegerParameter):
        for each in ranges.get(f"{kind.__name__.removesuffix('Parameter')}ParameterRanges", []):
            low, high = (json.loads(each[end]) for end in ("MinValue", "MaxValue"))
            found[each["Name"]] = kind(low, high, each["ScalingType"])
    return found
