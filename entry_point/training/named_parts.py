"""Looks up the code and files that settings name, before the dataset is opened: that may take
minutes."""

from __future__ import annotations

from pathlib import Path

from entry_point.config.config_errors import ConfigError
from entry_point.config.resolve import check_call, require_package, resolve
from entry_point.config.train_config import LOGGERS, TrainConfig
from entry_point.training.models import require_model
from entry_point.training.optim import SCHEDULES, optimizers
from entry_point.training.tasks.build_task import task_class
from entry_point.training.weights import weights_file


def require_named_parts(config: TrainConfig, channels: Path) -> None:
    """Raise ConfigError if a setting names a model, a file of weights or own code that is missing,
    or gives it an argument that it does not take.

    Built-in names were checked with the configuration.
    """
    require_model(config.model, config.data.image_size)
    if config.model.weights is not None:
        weights_file(config.model, channels)
    optim, task, augment = config.optim, config.task, config.augment
    build = resolve("optim.name", optim.name, optimizers())
    check_call("optim.kwargs", build, optim.kwargs, [], lr=optim.lr)
    if optim.schedule != "cosine":
        shape = resolve("optim.schedule", optim.schedule, SCHEDULES)
        _refuse_class("optim.schedule", optim.schedule, shape, "(epoch, epochs)")
        check_call("optim.schedule_kwargs", shape, optim.schedule_kwargs, 0.0, 1)
    given = dict.fromkeys(("train", "config", "device"))
    check_call("task.kwargs", task_class(task.name), task.kwargs, **given)
    if task.loss is not None and "." in task.loss:
        loss = resolve("task.loss", task.loss, {})
        _refuse_class("task.loss", task.loss, loss, "(outputs, targets)")
    if augment.name is not None and augment.own:
        check_call("augment.kwargs", resolve("augment.name", augment.name, {}), augment.kwargs)
    for name in config.loggers:
        if name in LOGGERS:
            require_package("loggers", name, name, name)
        build, word = resolve("loggers", LOGGERS.get(name, name), {}), name.rpartition(".")[2]
        kwargs = config.logger_kwargs.get(word, {})
        check_call(f"logger_kwargs.{word}", build, kwargs, None)


def _refuse_class(key: str, name: str, named: object, arguments: str) -> None:
    if isinstance(named, type):
        raise ConfigError(key, name, f"is a class; name a function of {arguments}")
