"""Writes checkpoints when they are due, atomically, in a background thread; reads the newest good
one, and checks that this job may resume from it."""

from __future__ import annotations

import errno
import logging
import re
import shutil
import time
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.utils._pytree import tree_map

from entry_point.config.config_errors import ConfigError, shown
from entry_point.config.train_config import TrainConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.source import Source, fingerprint
from entry_point.job.devices import Devices
from entry_point.job.file_kinds import name_kind
from entry_point.job.program import ExitCode, UserError
from entry_point.job.whole_file import replacing

logger = logging.getLogger(__name__)

State = dict[str, Any]
_NAME = re.compile(r"step-(\d+)\.pt")
BEST = "best.pt"
_PARTS = ("progress", "learner", "log")
"""Of a checkpoint: what the part of the trainer that has this name keeps."""
_NOWHERE = torch.tensor(False)
KEPT = 2
"""Newest checkpoints, beside the best one; of a finished run, one fewer."""
SECONDS = 600.0
"""Between checkpoints by time: what a lost machine costs at most."""
ASIDE = "aside-"
Settings = dict[str, Any]
STEPS = "steps per epoch"
VAL_TOP_UP = "data.val_top_up"
_PIXELS = (
    *("image_size", "progressive", "crop", "resize", "scale", "ratio", "hflip"),
    *("views", "gray_bits"),
)


class CheckpointError(UserError):
    """No checkpoint can be read, or the state is not worth saving."""

    exit_code = ExitCode.FAILED


class Checkpoints:
    """Writes `step-<step>.pt`; keeps the newest few and the best. Only the first rank writes.

    `save` returns once the state is copied to the CPU; a thread writes the file. The next call
    raises the error of a failed write, or of weights that have become NaN or infinite.
    """

    def __init__(
        self,
        folder: Path,
        every_steps: int | None,
        step: int,
        writes: bool,
        infinite: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """The run starts at `step`: checkpoints of later steps are set aside.

        `infinite`: the `infinite_values` of the model that the run began with.
        """
        self._folder, self._every_steps, self._writes = folder, every_steps, writes
        self._infinite = infinite or {}
        self._saved_step, self._saved_time = step, time.monotonic()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        for path in newest_first(folder) if writes else ():
            if int(path.stem.removeprefix("step-")) <= step:
                break
            # It is damaged, and a later start would take it for the newest.
            path.replace(path.with_name(ASIDE + path.name))
            logger.warning("checkpoint %s is set aside as %s", path, ASIDE + path.name)

    def time_is_up(self) -> bool:
        """Returns whether one is due by the first rank's clock."""
        return self._writes and time.monotonic() - self._saved_time > SECONDS

    def is_due(self, step: int, time_is_up: bool) -> bool:
        """Returns whether to save after `step`; the same on every rank.

        The ranks agree on `time_is_up` one step late, so a save in the last step already covers it.
        """
        by_steps = self._every_steps is not None and step % self._every_steps == 0
        return by_steps or (time_is_up and self._saved_step < step - 1)

    def save(self, state: State, step: int, *, best: bool = False) -> None:
        """Copy `state` and write it in the background; `best` also makes it the best checkpoint."""
        self._saved_step, self._saved_time = step, time.monotonic()
        if self._writes:
            self.wait()
            self._pending = self._thread.submit(self._write, copy_to_cpu(state), step, best)

    def wait(self) -> None:
        """Return once the last checkpoint is on disk."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def finish(self) -> None:
        """Remove what a finished run does not need: all but its newest checkpoint and the best."""
        for old in newest_first(self._folder)[KEPT - 1 :] if self._writes else ():
            old.unlink()

    def close(self) -> None:
        """Wait for the last checkpoint, then end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def _write(self, state: State, step: int, best: bool) -> None:
        self._check_finite(state, step)
        path = self._folder / f"step-{step:09d}.pt"
        if best:
            # First: a run that resumes from `path` does not write these weights again.
            save_tensors(state, self._folder / BEST)
            with replacing(path) as temporary:
                try:
                    temporary.hardlink_to(self._folder / BEST)
                except OSError:  # the file system has no links
                    shutil.copyfile(self._folder / BEST, temporary)
        else:
            save_tensors(state, path)
        others = [old for old in newest_first(self._folder) if old != path]
        for old in others[KEPT - 1 :]:
            old.unlink(missing_ok=True)

    def _check_finite(self, state: State, step: int) -> None:
        """Raise CheckpointError for NaN or infinity that the model did not begin with."""
        for part in ("model", "ema"):
            for name, value in state["learner"].get(part, {}).items():
                before = self._infinite.get(name, _NOWHERE)
                if before.shape not in (value.shape, _NOWHERE.shape):
                    continue  # the model has assigned another mask to the buffer
                if (~torch.isfinite(value) & ~before).any():
                    best = self._folder / BEST
                    start = f", or from model.weights={best}" if best.exists() else ""
                    raise CheckpointError(
                        f"{name} of the {part} holds NaN or infinity after step {step}, which is "
                        "not saved: lower optim.lr, or clip gradients with optim.clip_norm=1, and "
                        f"use another name to restart from scratch{start}"
                    )


def infinite_values(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns where weights and buffers hold NaN or infinity, as a mask of -inf does: bool tensors
    by name, of those that hold any."""
    found = {name: ~torch.isfinite(value) for name, value in model.state_dict().items()}
    return {name: infinite for name, infinite in found.items() if infinite.any()}


def copy_to_cpu(state: State) -> State:
    """Returns the state with its tensors copied to the CPU."""
    copied: State = tree_map(
        lambda leaf: leaf.detach().to("cpu", copy=True) if isinstance(leaf, torch.Tensor) else leaf,
        state,
    )
    _copy_versions(state, copied)
    return copied


def _copy_versions(state: State, copied: State) -> None:
    """Copy the versions of modules, which state dicts hold beside their tensors."""
    for key, part in state.items():
        if isinstance(part, dict):
            _copy_versions(part, copied[key])
        if versions := getattr(part, "_metadata", None):
            copied[key]._metadata = versions


def load_state(
    model: nn.Module, tensors: Mapping[str, torch.Tensor], *, strict: bool = True
) -> tuple[list[str], list[str]]:
    """Load weights of this model as `nn.Module.load_state_dict` does; returns what is missing and
    what is unexpected.

    Modules may read weights by the version of the modules that wrote them, and MNASNet refuses
    weights without one. Files and copies of state dicts lose it; it then is the model's.
    """
    state = OrderedDict(tensors)
    versions = getattr(tensors, "_metadata", None)
    state._metadata = model.state_dict()._metadata if versions is None else versions  # type: ignore[attr-defined]
    missing, unexpected = model.load_state_dict(state, strict=strict)
    return missing, unexpected


def newest_first(folder: Path) -> list[Path]:
    """Returns the checkpoints `step-<step>.pt` in `folder`."""
    return sorted((p for p in folder.glob("step-*.pt") if _NAME.fullmatch(p.name)), reverse=True)


def load_to_resume(folder: Path, settings: dict[str, Settings], devices: Devices) -> State | None:
    """Returns the first rank's newest checkpoint, on every rank; None to start from scratch.

    A collective call: the platform may restore different checkpoints on different hosts.
    """
    state: State | None = devices.from_first(load_newest(folder) if devices.is_first else None)
    if state is None:
        return None
    check_resumable(state, settings)
    for name in _changed_images(state, settings) if devices.is_first else ():
        logger.warning(
            "the dataset has changed since the checkpoint: the %s images have other names or "
            "labels; the run continues with the new ones",
            name,
        )
    return state


def load_newest(folder: Path) -> State | None:
    """Returns the newest `step-<step>.pt` that is whole, else the best one; None if there are none.

    Raises:
        CheckpointError: all of them are damaged.
        OSError: one cannot be read, or does not fit into memory; it may still be whole.
    """
    paths = [*newest_first(folder), *folder.glob(BEST)]
    for path in paths:
        try:
            state = _load_parts(path)
        except DamagedFileError as error:
            logger.warning("checkpoint %s is damaged (%s); trying the previous one", path, error)
            continue
        logger.info("resuming from %s", path)
        return state
    if paths:
        raise CheckpointError(
            f"every checkpoint in {folder} is damaged; copy a good one there, or remove them to "
            "restart from scratch"
        )
    return None


def with_recorded_split(config: TrainConfig, folder: Path, devices: Devices) -> TrainConfig:
    """Returns the configuration with the rule by which the run in `folder` divides its images.

    A run of an earlier version records none, and keeps the hash alone. A collective call.
    """
    identity = devices.from_first(saved_identity(folder) if devices.is_first else {})
    if not identity or identity.get(VAL_TOP_UP) is not None:
        return config
    return replace(config, data=replace(config.data, val_top_up=None))


def saved_identity(folder: Path) -> Settings:
    """Returns the `identity` of the newest checkpoint that can be read; empty without one."""
    return next(filter(None, map(read_identity, [*newest_first(folder), folder / BEST])), {})


def read_identity(path: Path) -> Settings:
    """Returns the `identity` of `job_settings` in a checkpoint, without reading its tensors; empty
    for any other file."""
    try:
        content = torch.load(path, "cpu", weights_only=True, mmap=True)
    except Exception:  # torch raises anything for a file that it has not written
        return {}
    identity = content.get("identity") if isinstance(content, dict) else None
    return identity if isinstance(identity, dict) else {}


def load_best(folder: Path) -> State | None:
    """Returns the best checkpoint; None if there is none.

    Raises CheckpointError if it is damaged.
    """
    path = folder / BEST
    if not path.exists():
        return None
    try:
        return _load_parts(path)
    except DamagedFileError as error:
        raise CheckpointError(
            f"{path} is damaged ({error}); set trainer.export=last to export the last weights"
        ) from error


def _load_parts(path: Path) -> State:
    """Returns a checkpoint. One of version 1 has the values of all parts in one: each takes its
    own."""
    state: State = load_tensors(path, verify=True)
    return state if "learner" in state else {**state, **dict.fromkeys(_PARTS, state)}


def job_settings(
    config: TrainConfig, train: Source, val: Source, steps_per_epoch: int, devices: Devices
) -> dict[str, Settings]:
    """Returns what a checkpoint says about its job.

    `identity` decides the weights, and which of them are the best; it must not change between a
    checkpoint and the run that resumes from it. `order`, and the `images` to train on, may change
    between two epochs.
    """
    optim = {f"optim.{key}": value for key, value in asdict(config.optim).items()}
    task = {f"task.{key}": value for key, value in asdict(config.task).items() if key != "metrics"}
    augment = {f"augment.{key}": value for key, value in asdict(config.augment).items()}
    identity = {
        "model.name": config.model.name,
        "model.kwargs": config.model.kwargs,
        **{f"class {number}": name for number, name in enumerate(train.classes)},
        VAL_TOP_UP: config.data.val_top_up,  # decides the number of images, which follows
        "training images": len(train),
        **{f"data.{key}": getattr(config.data, key) for key in _PIXELS},
        **dict(zip(("data.mean", "data.std"), config.data.normalization, strict=True)),
        "trainer.batch_size": config.trainer.batch_size,
        "trainer.seed": config.trainer.seed,
        STEPS: steps_per_epoch,
        **task,
        **augment,
        **optim,
    }
    return {
        "identity": identity,
        "order": sample_order(config, devices.world_size),
        "images": {"training": fingerprint(train), "validation": fingerprint(val)},
    }


def sample_order(config: TrainConfig, ranks: int) -> Settings:
    """Returns the settings that decide the order of an epoch's samples.

    Of a stream, each rank gets its own shards; else the order does not depend on their number.
    """
    data = config.data
    settings: Settings = {"data.access": "stream" if data.access == "stream" else "map"}
    if data.balance is not None:
        settings["data.balance"] = data.balance
    if data.repeats > 1:
        settings["data.repeats"] = data.repeats
    if data.streams:
        settings["ranks"] = ranks
    return settings


def check_resumable(state: State, settings: dict[str, Settings]) -> None:
    """Refuse another job's checkpoint, and one within an epoch whose samples have changed.

    Raises:
        ConfigError: names the first setting that differs, with both values.
        DataError: the images to train on differ, or their labels.
    """
    progress = state["progress"]
    # With data.access=stream, another number of ranks may take another number of steps.
    if progress["step"] or state["identity"][STEPS] != settings["identity"][STEPS]:
        check_same(state["order"], settings["order"])
    check_same(state["identity"], settings["identity"])
    if progress["step"] and "training" in _changed_images(state, settings):
        raise DataError(
            "the dataset has changed since the checkpoint, within epoch "
            f"{progress['epoch'] + 1}: the training images have other names or labels; restore "
            "them, or use another name to restart from scratch"
        )


def _changed_images(state: State, settings: dict[str, Settings]) -> list[str]:
    """Returns which images are not those that the checkpoint was made with."""
    saved = state.get("images", settings["images"])
    return [name for name, found in settings["images"].items() if saved[name] != found]


def check_same(saved: Settings, configured: Settings) -> None:
    """Raise ConfigError for the first setting that differs."""
    for key in saved | configured:
        was, now = saved.get(key), configured.get(key)
        if was != now:
            raise ConfigError(
                key,
                now,
                f"the checkpoint was made with {key}={shown(was)}; restore that value, or "
                "use another name to restart from scratch",
            )


class DamagedFileError(ValueError):
    """The file is not what torch.save wrote."""


def save_tensors(value: Any, path: Path) -> None:
    """Write `path` with torch.save, whole or not at all. Raises OSError, which names `path`."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(value, file)
        except RuntimeError as error:
            # torch.save replaces the error of a failed write with one that gives no reason.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def load_tensors(path: Path, *, verify: bool = False) -> Any:
    """Read a file with torch.load, without executing anything in it.

    `verify` also compares the checksums that torch.save wrote, which torch.load does not.

    Raises:
        DamagedFileError: the file is cut short, changed or another kind of file.
        OSError: it cannot be read, or does not fit into memory; it may still be whole.
    """
    try:
        if verify:
            with zipfile.ZipFile(path) as archive:  # OSError (EINVAL): an offset outside the file
                if (broken := archive.testzip()) is not None:
                    raise zipfile.BadZipFile(f"checksum of {broken} does not match")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other pickle protocols
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            needed = f"not enough memory to load it, {path.stat().st_size // 10**6 + 1} MB needed"
            raise OSError(errno.ENOMEM, needed, str(path)) from error
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise OSError(error.errno, error.strerror, str(path)) from error
        # What follows in torch's texts is advice for developers.
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise DamagedFileError(_kind_or(path, reason or type(error).__name__)) from error


def load_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file. Raises DamagedFileError and OSError."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise DamagedFileError(_kind_or(path, str(error).partition("\n")[0])) from error


def _kind_or(path: Path, reason: str) -> str:
    """Returns what the file is, or `reason` for one of the right kind."""
    kind = name_kind(path) if path.is_file() else None
    return reason if kind is None else f"it is {kind}"
