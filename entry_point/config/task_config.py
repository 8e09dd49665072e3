"""Typed settings of the group `task`."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from entry_point.config.checking import check_config
from entry_point.config.config_errors import ConfigError, did_you_mean, shown
from entry_point.config.resolve import check_name
from entry_point.config.schema import SETTINGS, Float, Share, Words
from entry_point.job.known_tasks import LOSS, TASKS, KnownTask

MOST_OWN_METRICS = 8


@dataclass(config=SETTINGS)
class TaskKwargs:
    """Arguments of the tasks in `TASKS`; `KnownTask.kwargs` names those that one takes."""

    gamma: Annotated[Float, Field(ge=0)] = 2.0
    threshold: Share = 0.5


@dataclass(config=SETTINGS)
class TaskConfig:
    """What the model learns: the kind of labels, the loss, and the metrics."""

    name: str = "classification"
    """`classification`: one class per image. `multilabel`: any number of labels per image.
    `regression`: one or more numbers per image. `segmentation`: a class per pixel. Or the dotted
    path to your own task."""
    kwargs: dict[str, Any] = Field(default={})
    """Arguments of the task. `gamma` (2) with `loss=focal`: how strongly samples that the model
    already gets right are down-weighted; 0: not at all. `threshold` (0.5) of `multilabel`: smallest
    probability with which a label counts as found. Or the arguments of your own task."""
    loss: str | None = None
    """Training loss. null: `cross_entropy`, `binary_cross_entropy` or `squared_error`, as the task
    needs. Also `focal` (classification, multilabel), `absolute_error` and `huber` (regression), or
    the dotted path to your own function that takes the model's outputs and the targets."""
    label_smoothing: Annotated[Float, Field(ge=0, lt=1)] = 0.1
    """`name=classification` and `segmentation`: label smoothing of the training loss."""
    class_weights: Any = None
    """Weights in the training loss: a list with one per class (for multilabel: what the images
    that have the label count), or `auto`: the inverse of its frequency in the train split. null:
    all count the same."""
    best: str | None = None
    """Metric by which the best checkpoint is chosen, or `loss`. null: the task's first: `accuracy`,
    `map`, `mae` or `miou`."""
    metrics: Words = Field(default=[])
    """Names of the metrics that only your own task has, so that SageMaker reads them too."""

    def __post_init__(self) -> None:
        check_name("task.name", self.name, TASKS)
        if self.name in TASKS:  # the metrics of your own task are unknown here
            self._check_known(TASKS[self.name])
        weights = self.class_weights
        if weights is not None and weights != "auto":
            are_weights = isinstance(weights, list) and all(map(_is_weight, weights))
            if not are_weights or not any(weights):
                message = "must be auto, null, or a list of numbers from 0 on, one per class"
                raise ConfigError("task.class_weights", weights, message)
        if len(self.metrics) > MOST_OWN_METRICS:
            raise ConfigError("task.metrics", self.metrics, f"at most {MOST_OWN_METRICS} names")
        for name in self.metrics:
            if not name.isidentifier() or not name.isascii():
                raise ConfigError("task.metrics", name, "must be letters, digits and underscores")

    def ignored(self) -> list[str]:
        """Returns a line for each setting of the loss that changes nothing beside the others."""
        found: dict[str, float] = {}
        if (task := TASKS.get(self.name)) is not None:  # what your own task uses is unknown here
            smooths = task.takes in ("class", "targets") and self.loss in (None, *task.losses)
            if not smooths and self.label_smoothing != TaskConfig.label_smoothing:
                found["task.label_smoothing"] = self.label_smoothing
            if self.loss != "focal":
                found["task.kwargs.gamma"] = self.kwargs.get("gamma", 0)
        return [
            f"{key}={value:g}: changes nothing with task.name={self.name} "
            f"task.loss={shown(self.loss)}; drop it"
            for key, value in found.items()
            if value
        ]

    def _check_known(self, task: KnownTask) -> None:
        for name in self.kwargs.keys() - {*task.kwargs}:
            message = (
                f"no such key; task.kwargs of {self.name} has {', '.join(task.kwargs) or 'none'}"
            )
            raise ConfigError(f"task.kwargs.{name}", self.kwargs[name], message)
        check_config(self.kwargs, TaskKwargs, "task.kwargs")
        if self.loss is not None:
            check_name("task.loss", self.loss, task.losses)
        if self.class_weights is not None and task.takes == "numbers":
            message = f"task.name={self.name} has no classes; set null"
            raise ConfigError("task.class_weights", self.class_weights, message)
        metrics = [metric.name for metric in (*task.metrics, LOSS)]
        if self.best is not None and self.best not in metrics:
            message = f"must be one of {', '.join(metrics)}{did_you_mean(self.best, metrics)}"
            raise ConfigError("task.best", self.best, message)


def _is_weight(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0
