"""One SageMaker job that trains a job for each combination of values: `make sagemaker-sweep`."""

import json
import math
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override

from entry_point.config.compose import parse_overrides
from entry_point.config.config_errors import ConfigError
from entry_point.config.task_config import TaskConfig
from entry_point.config.train_config import load_train_config
from entry_point.contract.hyperparameters import decode
from entry_point.contract.metrics_line import LOSS, METRICS, METRICS_OF
from entry_point.contract.program import UserError
from launch.sagemaker.aws import session_unless_dry
from launch.sagemaker.checks import input_shape, job_problems
from launch.sagemaker.config import require_job_keys
from launch.sagemaker.jobs import TUNING, Job
from launch.sagemaker.training import TrainingSpec, load_spec, prepare, submit
from launch.sagemaker.training_request import BASE_NAME, merged

OPERATION = "CreateHyperParameterTuningJob"
_DEFINITION = "TrainingJobDefinition"
_WHOLE = re.compile(r"interval\(\s*-?\d+\s*,\s*-?\d+\s*\)")
Ranges = dict[str, list[dict[str, Any]]]
"""`ParameterRanges` of the request: kind + `ParameterRanges` -> the ranges of this kind."""


def sweep(arguments: Sequence[str]) -> Job | None:
    """Send the checked request; a dry run prints it, without any call, and returns None.

    Raises UserError with one line for each problem; AWS errors pass through.
    """
    spec = load_tuning(arguments)
    session = session_unless_dry()
    prepare(spec.training, session)
    request = spec.request()
    submit(session, OPERATION, request)
    if session is None:
        return None
    limits = request["HyperParameterTuningJobConfig"]["ResourceLimits"]
    count, parallel = limits["MaxNumberOfTrainingJobs"], limits["MaxParallelTrainingJobs"]
    name = request["HyperParameterTuningJobName"]
    sys.stdout.write(f"tuning job {name} created: {count} trials, {parallel} at a time\n")
    sys.stdout.write(f'  make sagemaker ARGS="status {name}"     the table of its trials\n')
    sys.stdout.write(f'  make sagemaker ARGS="stop {name}"\n')
    return Job(session, name, TUNING)


@dataclass(frozen=True)
class TuningSpec:
    """The training job of every trial, and the values that the trials try."""

    training: TrainingSpec
    ranges: Ranges

    @property
    def is_grid(self) -> bool:
        """Whether every combination is trained; else SageMaker chooses the values."""
        max_jobs = self.training.config.tuning.max_jobs
        return set(self.ranges) == {"CategoricalParameterRanges"} and max_jobs is None

    @property
    def objective(self) -> str:
        """A metric of the request, as `validation:accuracy`."""
        return self.training.config.tuning.objective or tracked_metric(self.training.train.task)

    def problems(self) -> Iterator[str]:
        """What would cost trials without a result, or be ignored."""
        config = self.training.config
        algorithm = self.training.request()["AlgorithmSpecification"]
        metrics = [metric["Name"] for metric in algorithm["MetricDefinitions"]]
        if self.objective not in metrics:
            shown = ", ".join(name for name in metrics if name not in METRICS or ":" in name)
            yield f"tuning.objective={self.objective}: must be one of {shown}"
        if not self.is_grid and config.tuning.max_jobs is None:
            yield "tuning.max_jobs is missing; an interval has no end: say how many trials"
        for member, value in config.job.request.items():
            if value is not None and member not in _members() and member != "Tags":
                must = "the trials of a sweep have no such member; set it to null"
                yield f"job.request.{member}: {must}"
        if config.resume_from:
            start = "not for a sweep, whose trials start from scratch"
            yield f"resume_from={config.resume_from}: {start}"

    def request(self) -> dict[str, Any]:
        """The request, with `job.name` or a new name.

        The trials write TensorBoard logs into their output only: a trial has no other place
        for them.
        """
        config, tuning = self.training.config, self.training.config.tuning
        # To the second: SageMaker allows 32 characters.
        name = config.job.name or f"{BASE_NAME}-{datetime.now(UTC):%y%m%d-%H%M%S}"
        training = self.training.request(name)
        definition = {key: value for key, value in training.items() if key in _members()}
        swept = swept_keys(self.ranges)
        static = training.get("HyperParameters", {}).items()
        if kept := {key: value for key, value in static if key not in swept}:
            definition["StaticHyperParameters"] = kept
        request = {
            "HyperParameterTuningJobName": name,
            "HyperParameterTuningJobConfig": {
                "Strategy": "Grid" if self.is_grid else "Bayesian",
                "HyperParameterTuningJobObjective": {
                    "Type": "Minimize" if is_minimized(self.objective) else "Maximize",
                    "MetricName": self.objective,
                },
                "ResourceLimits": {
                    "MaxNumberOfTrainingJobs": tuning.max_jobs or combinations(self.ranges),
                    "MaxParallelTrainingJobs": tuning.parallel,
                },
                "ParameterRanges": self.ranges,
                "TrainingJobEarlyStoppingType": "Off",
            },
            _DEFINITION: definition,
        }
        request |= {"Tags": training["Tags"]} if "Tags" in training else {}
        tuned: dict[str, Any] = merged(request, tuning.request)
        return tuned


def load_tuning(arguments: Sequence[str]) -> TuningSpec:
    """Read the overrides of a sweep, and check every value as the job will.

    Raises UserError with one line for each problem.
    """
    fixed, ranges = split_sweep(arguments)
    spec = load_spec(fixed)
    require_job_keys(swept_keys(ranges))
    found: dict[str, None] = {}
    for values in examples(ranges):
        overrides = [*spec.overrides, *values]
        train, _ = load_train_config(overrides)
        found |= dict.fromkeys(job_problems(train, overrides, spec.config))
    tuning = TuningSpec(spec, ranges)
    found |= dict.fromkeys(tuning.problems())
    if found:
        raise UserError(*found)
    return tuning


def tracked_metric(task: TaskConfig) -> str:
    """The metric by which the job chooses its best checkpoint, as SageMaker knows it."""
    of_task = [metric.name for metric in METRICS_OF.get(task.name, ())]
    return f"validation:{task.best or (task.metrics or of_task or [LOSS.name])[0]}"


def is_minimized(metric: str) -> bool:
    """Whether smaller values of a metric are better; own metrics are maximized."""
    every = (LOSS, *(metric for of_task in METRICS_OF.values() for metric in of_task))
    lower = {f"validation:{each.name}" for each in every if not each.higher_is_better}
    return metric in lower | {"train:loss", "train:data_wait_pct"}


def _members() -> Collection[str]:
    """What a tuning job can set of its trials' requests."""
    members: Collection[str] = input_shape(OPERATION).members[_DEFINITION].members
    return members


# The values to try


def split_sweep(arguments: Sequence[str]) -> tuple[list[str], Ranges]:
    """Return the fixed overrides and the ranges of the swept ones.

    `optim.lr=0.01,0.1`, `range(1,5)` and `choice(a,b)` list values. `interval(0.01,1)` spans all
    between, on a logarithmic scale with `tag(log,interval(0.001,1))`; `interval(1,9)`, with whole
    ends, whole numbers. Raises ConfigError for a value that a hyperparameter cannot carry, and
    without any swept value.
    """
    fixed: list[str] = []
    ranges: Ranges = {}
    for text, override in zip(arguments, parse_overrides(arguments), strict=True):
        if override.is_sweep_override():
            kind, members = _swept(override, text)
            ranges.setdefault(f"{kind}ParameterRanges", []).append(members)
        else:
            fixed.append(text)
    if not ranges:
        must = "vary a setting, as in optim.lr=0.01,0.1 or optim.lr=interval(0.01,1)"
        raise ConfigError("sweep", must=must)
    return fixed, ranges


def swept_keys(ranges: Ranges) -> list[str]:
    """What varies, as `optim.lr`."""
    return [each["Name"] for kind in ranges.values() for each in kind]


def examples(ranges: Ranges) -> Iterator[list[str]]:
    """The overrides of trials that together have every listed value and both ends of intervals."""
    values = {
        each["Name"]: each.get("Values") or [each["MinValue"], each["MaxValue"]]
        for kind in ranges.values()
        for each in kind
    }
    first = {key: each[0] for key, each in values.items()}
    yield decode(first)
    for key, each in values.items():
        yield from (decode({**first, key: value}) for value in each[1:])


def combinations(ranges: Ranges) -> int:
    """The number of trials that try every combination of listed values."""
    return math.prod(len(each["Values"]) for each in ranges.get("CategoricalParameterRanges", []))


def _swept(override: Override, text: str) -> tuple[str, dict[str, Any]]:
    """Kind and members of one range."""
    key = override.get_key_element()
    if not key or key[0] in "+~":
        raise ConfigError(text, must="must vary an existing key, without + or ~")
    value = override.value()
    if isinstance(value, IntervalSweep):
        kind, number = ("Integer", int) if _WHOLE.search(text) else ("Continuous", float)
        ends = [str(number(end)) for end in (value.start, value.end) if end is not None]
        scale = "Logarithmic" if "log" in value.tags else "Auto"
        between = {"MinValue": ends[0], "MaxValue": ends[1], "ScalingType": scale}
        return kind, {"Name": key, **between}
    values = [_carried(key, spelled) for spelled in override.sweep_string_iterator()]
    return "Categorical", {"Name": key, "Values": values}


def _carried(key: str, spelled: str) -> str:
    """The text of a hyperparameter that the job decodes to this value."""
    (meant,) = parse_overrides([f"{key}={spelled}"])
    value = meant.value()
    text = spelled
    if isinstance(value, str):
        text = str(value)
    elif isinstance(value, list):
        text = json.dumps(value, default=str)
    (arrives,) = parse_overrides(decode({key: text}))
    if arrives.value() != value:
        must = "cannot be sent as a hyperparameter; vary a number or a word"
        raise ConfigError(f"{key}={spelled}", must=must)
    return text
