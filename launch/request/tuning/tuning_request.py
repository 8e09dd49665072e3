"""The CreateHyperParameterTuningJob request: one training request, and the values to try."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from entry_point.contract.metrics_line import LOSS, METRICS, METRICS_OF
from launch.request import config_keys, service_model
from launch.request.launch_config import Job, LaunchConfig
from launch.request.launch_errors import LaunchError
from launch.request.tuning.tuning_ranges import Ranges, combinations

OPERATION = "CreateHyperParameterTuningJob"
_DEFINITION = "TrainingJobDefinition"
GRID, BAYESIAN = "Grid", "Bayesian"


@dataclass(frozen=True)
class Search:
    """How a tuning job looks for the best trial."""

    ranges: Ranges
    objective: str
    """A metric of the request, as `validation:accuracy`."""
    minimize: bool
    strategy: str
    """`Grid` tries every combination of listed values; the others of SageMaker's also intervals."""
    max_jobs: int | None
    parallel: int
    early_stopping: bool = False


def tuning_name(job: Job, now: datetime) -> str:
    """`job.name`, or the base name with the time: SageMaker allows 32 characters."""
    return job.name or f"{job.base_name}-{now:%y%m%d-%H%M%S}"


def is_minimized(metric: str) -> bool:
    """Whether smaller values of a metric are better; own metrics are maximized."""
    every = (LOSS, *(metric for of_task in METRICS_OF.values() for metric in of_task))
    lower = {f"validation:{each.name}" for each in every if not each.higher_is_better}
    return metric in lower | {"train:loss", "train:data_wait_pct"}


def chosen_search(config: LaunchConfig, ranges: Ranges, objective: str) -> Search:
    """The search that `tuning` asks for; raises LaunchError."""
    tuning = config.tuning
    is_grid = set(ranges) == {"CategoricalParameterRanges"} and tuning.max_jobs is None
    if not is_grid and tuning.max_jobs is None:
        raise LaunchError("tuning.max_jobs is missing; an interval has no end: say how many trials")
    return Search(
        ranges=ranges,
        objective=objective,
        minimize=is_minimized(objective),
        strategy=GRID if is_grid else BAYESIAN,
        max_jobs=combinations(ranges) if is_grid else tuning.max_jobs,
        parallel=tuning.parallel,
        early_stopping=tuning.early_stopping,
    )


def build(training: Mapping[str, Any], search: Search) -> dict[str, Any]:
    """The request whose trials are the training job of a request with the tuning job's name.

    The trials write TensorBoard logs into their output only: a trial has no place of its own for
    them.
    """
    definition = {key: value for key, value in training.items() if key in _members()}
    definition["StaticHyperParameters"] = {
        key: value
        for key, value in training.get("HyperParameters", {}).items()
        if key not in {each["Name"] for kind in search.ranges.values() for each in kind}
    }
    request = {
        "HyperParameterTuningJobName": training["TrainingJobName"],
        "HyperParameterTuningJobConfig": {
            "Strategy": search.strategy,
            "HyperParameterTuningJobObjective": {
                "Type": "Minimize" if search.minimize else "Maximize",
                "MetricName": search.objective,
            },
            "ResourceLimits": {
                "MaxNumberOfTrainingJobs": search.max_jobs,
                "MaxParallelTrainingJobs": search.parallel,
            },
            "ParameterRanges": search.ranges,
            "TrainingJobEarlyStoppingType": "Auto" if search.early_stopping else "Off",
        },
        _DEFINITION: {key: value for key, value in definition.items() if value != {}},
    }
    if "Tags" in training:
        request["Tags"] = training["Tags"]
    return request


def _members() -> Collection[str]:
    """What a tuning job can set of its trials' requests."""
    members: Collection[str] = service_model.input_shape(OPERATION).members[_DEFINITION].members
    return members


def check(request: dict[str, Any], config: LaunchConfig) -> None:
    """Raise LaunchError with one line for each problem."""
    found = config_keys.refusals(request, OPERATION, config)
    found += _problems(request, config)
    if found:
        raise LaunchError(*found)


def _problems(request: dict[str, Any], config: LaunchConfig) -> Iterator[str]:
    definition = request[_DEFINITION]
    settings = request["HyperParameterTuningJobConfig"]
    objective = settings["HyperParameterTuningJobObjective"]["MetricName"]
    metrics = [m["Name"] for m in definition["AlgorithmSpecification"]["MetricDefinitions"]]
    if objective not in metrics:
        shown = ", ".join(name for name in metrics if name not in METRICS or ":" in name)
        yield f"tuning.objective={objective}: must be one of {shown}"
    for member in config.job.request:
        if member not in _members() and member != "Tags":
            yield f"job.request.{member}: the trials of a sweep have no such member; drop it"
    if config.resume_from:
        yield f"resume_from={config.resume_from}: not for a sweep, whose trials start from scratch"
    if settings["Strategy"] == GRID and settings["TrainingJobEarlyStoppingType"] == "Auto":
        yield "tuning.early_stopping=true: needs an interval; a sweep of listed values trains all"
