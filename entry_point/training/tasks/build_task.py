"""Builds the task from the settings of `task`, and finds the metric that checkpoints track."""

from __future__ import annotations

from collections.abc import Callable

import torch

from entry_point.config.config_errors import ConfigError, did_you_mean
from entry_point.config.resolve import call, resolve
from entry_point.config.task_config import TaskConfig
from entry_point.config.train_config import TrainConfig
from entry_point.data.sources.source import Source
from entry_point.job.known_tasks import LOSS, TASKS, Metric
from entry_point.training.tasks.task import Task

HOLDS = {
    "class": "one class per image",
    "labels": "any number of labels per image",
    "numbers": "numbers",
    "targets": "targets that lie in the image",
}
"""Labels of a dataset by kind, for messages."""


def build_task(config: TrainConfig, train: Source, device: torch.device) -> Task:
    """Returns the task that `task.name` names, for the train split.

    Raises ConfigError if it cannot be built, or does not suit the labels or samples.
    """
    settings = config.task
    build = task_class(settings.name)
    _check_kind(settings.name, getattr(build, "takes", None), train)
    _check_complete(settings.name, sorted(getattr(build, "__abstractmethods__", ())))
    task: Task = call(
        "task.kwargs", build, settings.kwargs, train=train, config=config, device=device
    )
    if config.data.views > 1 and settings.name in TASKS and task.takes != "targets":
        message = (
            f"task.name={settings.name} learns from one sample of an image; set 1, or name a task "
            "that compares several, such as project.simclr.SimClr"
        )
        raise ConfigError("data.views", config.data.views, message)
    members = {**Task.__annotations__, **vars(Task)}
    missing = [name for name in members if name[0] != "_" and not hasattr(task, name)]
    _check_complete(settings.name, missing)
    _check_kind(settings.name, task.takes, train)
    return task


def task_class(name: str) -> Callable[..., Task]:
    """Returns the class that `task.name` names: your own by its dotted path, or one of this folder,
    as `Regression` of regression.py. Raises ConfigError."""
    path = f"{__package__}.{name}.{name.capitalize()}" if name in TASKS else name
    task: Callable[..., Task] = resolve("task.name", path, {})
    return task


def _check_complete(name: str, missing: list[str]) -> None:
    if missing:
        message = f"has no {', '.join(missing)}; see entry_point/training/tasks/task.py"
        raise ConfigError("task.name", name, message)


def _check_kind(name: str, takes: str | None, train: Source) -> None:
    if takes in (None, train.kind):
        return
    fitting = [known for known, task in TASKS.items() if task.takes == train.kind]
    other = f"task={fitting[0]}" if fitting else "your own task"
    message = (
        f"learns from {HOLDS[str(takes)]}, but the dataset holds {HOLDS[train.kind]}; "
        f"use {other}, or other labels"
    )
    raise ConfigError("task.name", name, message)


def tracked_metric(config: TaskConfig, task: Task) -> Metric:
    """Returns the metric that decides which checkpoint is the best. Raises ConfigError."""
    if config.best is None:
        return task.metrics[0]
    known = {metric.name: metric for metric in (*task.metrics, LOSS)}
    if config.best not in known:
        message = f"must be one of {', '.join(known)}{did_you_mean(config.best, known)}"
        raise ConfigError("task.best", config.best, message)
    return known[config.best]
