"""Decides whether this job may resume from a checkpoint: it must be the same job."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from entry_point.config.commands import changes
from entry_point.config.config_errors import ConfigError, shown
from entry_point.config.override_text import spell
from entry_point.config.retired import NOT_YET
from entry_point.config.train_config import TrainConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.source import Source, fingerprint
from entry_point.job.devices import Devices
from entry_point.training.checkpoints import (
    BEST,
    IDENTITY,
    STEPS,
    State,
    load_newest,
    peek,
    saved_steps,
)

logger = logging.getLogger(__name__)

Settings = dict[str, Any]
_NAMES_OF_IMAGES = (
    *("data.root", "data.images", "data.format", "data.kwargs", "data.table"),
    "data.val_fraction",
)
FREE = {
    "task.metrics",
    # Where the images are; their names and labels are compared instead.
    *(*_NAMES_OF_IMAGES, "data.index_root", "data.max_bad_fraction"),
    # The order of an epoch; it may change between two epochs.
    *("data.access", "data.balance", "data.repeats"),
    # A resumed run has its weights already.
    *("model.weights", "model.gradient_checkpointing"),
    # How long the run trains, on which hardware, and what it writes.
    *("trainer.epochs", "trainer.early_stopping", "trainer.evaluate_every_epochs"),
    *("trainer.device", "trainer.precision", "trainer.compile", "trainer.deterministic"),
    *("trainer.nproc_per_host", "trainer.find_unused_parameters", "trainer.log_every_steps"),
    *("trainer.checkpoint_every_steps", "trainer.export", "trainer.report", "trainer.diagnose"),
}
"""Settings that may differ from those of the checkpoint."""
FREE_GROUPS = ("pipeline.", "logger_kwargs.")
"""Groups whose settings may differ: how fast the same pixels arrive, and where metrics go."""
_VAL_TOP_UP = "data.val_top_up"
_USUAL_ORDER = {"data.balance": None, "data.repeats": 1}
"""Values of settings that checkpoints of earlier versions lack in their `order`."""
_FIXED_AT_THE_END = ("model.weights", "data.balance", "data.repeats")
"""Settings that may differ only while epochs are left to train."""


def job_settings(
    config: TrainConfig, train: Source, val: Source, steps_per_epoch: int, devices: Devices
) -> dict[str, Settings]:
    """Returns the entries of a checkpoint that describe its job.

    The `identity`, without the free settings, must be that of the run that resumes. `order`, and
    the `images` to train on, may change between two epochs.
    """
    identity = {
        **typed_settings(config),
        **dict(zip(("data.mean", "data.std"), map(list, config.data.normalization), strict=True)),
        **{f"class {number}": str(name) for number, name in enumerate(train.classes)},
        "training images": len(train),
        STEPS: steps_per_epoch,
    }
    return {
        IDENTITY: identity,
        "order": sample_order(config, devices.world_size),
        "images": {"training": fingerprint(train), "validation": fingerprint(val)},
    }


def typed_settings(config: TrainConfig) -> Settings:
    """Returns the settings by their keys on the command line, each `kwargs` as one value."""
    return {
        f"{group}.{name}": value
        for group, values in asdict(config).items()
        for name, value in (values.items() if isinstance(values, dict) else ())
    }


def is_free(key: str) -> bool:
    """Returns whether a setting may differ from the checkpoint's."""
    return key in FREE or key.startswith(FREE_GROUPS)


def sample_order(config: TrainConfig, ranks: int) -> Settings:
    """Returns the settings that decide the order of an epoch's samples.

    With `data.access=stream`, each rank reads its own shards, so the number of ranks counts.
    """
    data = config.data
    access = "stream" if data.access == "stream" else "map"
    settings = {"data.access": access, "data.balance": data.balance, "data.repeats": data.repeats}
    if data.streams:
        settings["ranks"] = ranks
    return settings


def load_to_resume(folder: Path, settings: dict[str, Settings], devices: Devices) -> State | None:
    """Returns the first rank's newest checkpoint on every rank; None to start from scratch.

    A collective call, because the platform may restore different checkpoints on different hosts.
    """
    state: State | None = devices.from_first(load_newest(folder) if devices.is_first else None)
    if state is None:
        return None
    refuse_other_job(state, settings)
    for name in _changed_images(state, settings) if devices.is_first else ():
        logger.warning(
            "the dataset has changed since the checkpoint: the %s images have other names or "
            "labels; the run continues with the new ones",
            name,
        )
    now = settings[IDENTITY]["model.weights"]
    begun = state[IDENTITY].get("model.weights", now)
    if begun != now and devices.is_first:
        logger.warning(
            "model.weights=%s has no effect: the run began with %s, and resumes with what it has "
            "learned",
            *map(shown, (now, begun)),
        )
    return state


def refuse_other_job(state: State, settings: dict[str, Settings]) -> None:
    """Refuse the checkpoint of another job, and one within an epoch whose samples have changed.

    Raises:
        ConfigError: names the first setting that differs, with both values.
        DataError: the images to train on differ, or their labels.
    """
    progress = state["progress"]
    # With data.access=stream, the steps per epoch may depend on the number of ranks.
    if progress["step"] or state[IDENTITY][STEPS] != settings[IDENTITY][STEPS]:
        _refuse_difference({**_USUAL_ORDER, **state["order"]}, settings["order"])
    saved, now = state[IDENTITY], settings[IDENTITY]
    _refuse_difference(_compared(saved), _compared(now), _names_of_images(saved, now))
    if progress["step"] and "training" in _changed_images(state, settings):
        raise DataError(
            "the dataset has changed since the checkpoint, within epoch "
            f"{progress['epoch'] + 1}: the training images have other names or labels; restore "
            "them, or use another name to restart from scratch"
        )


def refuse_untrained(state: State, settings: dict[str, Settings]) -> None:
    """Refuse a change of training settings for a complete run: its `model/` would claim that the
    weights were trained with them. Raises ConfigError."""
    saved, now = ({**job[IDENTITY], **job["order"]} for job in (state, settings))
    for key in _FIXED_AT_THE_END:
        _refuse_difference({key: saved.get(key, now[key])}, {key: now[key]})


def _compared(identity: Settings) -> Settings:
    """Returns the entries that must not differ. Settings that are newer than the checkpoint get the
    value that matches the behavior of its version."""
    later = {**typed_settings(TrainConfig()), **{f"data.{key}": NOT_YET[key] for key in NOT_YET}}
    known = {**later, **identity}
    return {key: value for key, value in known.items() if not is_free(key)}


def _changed_images(state: State, settings: dict[str, Settings]) -> list[str]:
    """Returns the splits whose images are not those of the checkpoint."""
    saved = state.get("images", settings["images"])
    return [name for name, found in settings["images"].items() if saved[name] != found]


def _names_of_images(saved: Settings, configured: Settings) -> str:
    """Returns the checkpoint's settings that name its images, as typed on the command line, if they
    differ now."""
    was, now = (
        {key: settings[key] for key in _NAMES_OF_IMAGES if key in settings}
        for settings in (saved, configured)
    )
    return " ".join(f"{key}={spell(value)}" for key, value in changes(was, now).items())


def _refuse_difference(saved: Settings, configured: Settings, names_of_images: str = "") -> None:
    """Raise ConfigError for the first setting, or property of the images, that differs."""
    for key in saved | configured:
        was, now = saved.get(key), configured.get(key)
        if was != now:
            is_fact = "." not in key
            restored = (names_of_images or "the dataset") if is_fact else "that value"
            raise ConfigError(
                key,
                now,
                f"the checkpoint was made with {key}={shown(was)}; restore {restored}, or "
                "use another name to restart from scratch",
            )


def with_recorded_split(config: TrainConfig, folder: Path, devices: Devices) -> TrainConfig:
    """Returns the configuration with the rule by which the run in `folder` splits its images.

    Runs of earlier versions did not record one: they used the hash alone. A collective call.
    """
    identity = devices.from_first(saved_identity(folder) if devices.is_first else {})
    if not identity or identity.get(_VAL_TOP_UP) is not None:
        return config
    return replace(config, data=replace(config.data, val_top_up=None))


def saved_identity(folder: Path) -> Settings:
    """Returns the `identity` of the newest checkpoint that can be read; empty without one."""
    return next(
        filter(None, map(read_identity, [*saved_steps(folder).values(), folder / BEST])), {}
    )


def read_identity(path: Path) -> Settings:
    """Returns the `identity` of `job_settings` in a checkpoint, without reading its tensors; empty
    for any other file."""
    identity = peek(path).get(IDENTITY)
    return identity if isinstance(identity, dict) else {}
