"""Typed settings of the group `task`."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from entry_point.config.config_errors import ConfigError, near
from entry_point.config.mistakes import check_config
from entry_point.config.resolve import check_name
from entry_point.config.schema import SETTINGS, Float, Share, Words
from entry_point.job.metrics_line import LOSS, METRICS_OF

LOSSES_OF = {
    "classification": ("cross_entropy", "focal"),
    "multilabel": ("binary_cross_entropy", "focal"),
    "regression": ("squared_error", "absolute_error", "huber"),
    "segmentation": ("cross_entropy",),
}
"""Task -> its training losses, the default first."""
MOST_OWN_METRICS = 8


@dataclass(config=SETTINGS)
class NoKwargs:
    """What `task.kwargs` may hold with `task=regression` and `task=segmentation`."""


@dataclass(config=SETTINGS)
class ClassificationKwargs:
    """What `task.kwargs` may hold with `task=classification`."""

    gamma: Annotated[Float, Field(ge=0)] = 2.0


@dataclass(config=SETTINGS)
class MultilabelKwargs(ClassificationKwargs):
    """What `task.kwargs` may hold with `task=multilabel`."""

    threshold: Share = 0.5


_KWARGS_OF: dict[str, type] = {
    "classification": ClassificationKwargs,
    "multilabel": MultilabelKwargs,
    "regression": NoKwargs,
    "segmentation": NoKwargs,
}


@dataclass(config=SETTINGS)
class TaskConfig:
    """What the model learns: the kind of labels, the loss, and the metrics."""

    name: str = "classification"
    """`classification`: one class per image. `multilabel`: any number of labels per image.
    `regression`: one or more numbers per image. `segmentation`: a class per pixel. Or the dotted
    path of your own task."""
    kwargs: dict[str, Any] = Field(default={})
    """Arguments of the task. `gamma` (2) with `loss=focal`: how much less samples count that the
    model already gets right; 0: no less. `threshold` (0.5) of `multilabel`: smallest probability
    with which a label counts as found. Or those of your own task."""
    loss: str | None = None
    """Training loss. null: `cross_entropy`, `binary_cross_entropy` or `squared_error`, as the task
    needs. Also `focal` (classification, multilabel), `absolute_error` and `huber` (regression), or
    the dotted path of your own function that takes the model's outputs and the targets."""
    label_smoothing: Share = 0.1
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
        self._check_name()
        self._check_loss()
        self._check_best()
        self._check_class_weights()
        if len(self.metrics) > MOST_OWN_METRICS:
            raise ConfigError("task.metrics", self.metrics, f"at most {MOST_OWN_METRICS} names")
        for name in self.metrics:
            if not name.isidentifier() or not name.isascii():
                raise ConfigError("task.metrics", name, "must be letters, digits and underscores")

    def _check_name(self) -> None:
        check_name("task.name", self.name, _KWARGS_OF)
        if self.name in _KWARGS_OF:
            check_config(self.kwargs, _KWARGS_OF[self.name], "task.kwargs")

    def _check_loss(self) -> None:
        if self.loss is not None and self.name in LOSSES_OF:
            check_name("task.loss", self.loss, LOSSES_OF[self.name])
        if self.class_weights is not None and self.name == "regression":
            must = "task.name=regression has no classes; set null"
            raise ConfigError("task.class_weights", self.class_weights, must)

    def _check_best(self) -> None:
        """Only your own task knows its own metrics."""
        names = [metric.name for metric in (*METRICS_OF.get(self.name, ()), LOSS)]
        if self.best is not None and self.name in METRICS_OF and self.best not in names:
            must = f"must be one of {', '.join(names)}{near(self.best, names)}"
            raise ConfigError("task.best", self.best, must)

    def _check_class_weights(self) -> None:
        weights = self.class_weights
        if weights is None or weights == "auto":
            return
        if not isinstance(weights, list) or not weights or not all(map(_is_weight, weights)):
            must = "must be auto, null, or a list of numbers of at least 0, one per class"
            raise ConfigError("task.class_weights", weights, must)


def _is_weight(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0
