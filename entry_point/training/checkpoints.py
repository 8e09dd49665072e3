"""Writes checkpoints when they are due, atomically, in a background thread; reads the newest one
that is undamaged."""

from __future__ import annotations

import errno
import logging
import re
import shutil
import time
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.serialization import get_unsafe_globals_in_checkpoint
from torch.utils._pytree import tree_map_only

from entry_point.job.file_kinds import name_kind
from entry_point.job.program import ExitCode, UserError
from entry_point.job.text import listed
from entry_point.job.whole_file import replacing

logger = logging.getLogger(__name__)

State = dict[str, Any]
_NAME = re.compile(r"step-(\d+)\.pt")
BEST = "best.pt"
IDENTITY, STEPS = "identity", "steps per epoch"
"""The checkpoint's entry that identifies its job, see `resume.py`, and a key in that entry."""
_PARTS = ("progress", "learner", "log")
"""Entries of a checkpoint, each the state of the trainer's part of that name."""
KEPT = 2
"""Number of newest checkpoints that are kept beside the best one; a finished run keeps one."""
SECONDS = 600.0
"""Time between checkpoints: the most training that a lost machine costs."""


class CheckpointError(UserError):
    """No checkpoint can be read, or the state is not worth saving."""

    exit_code = ExitCode.FAILED


class Checkpoints:
    """Writes `step-<step>.pt`; keeps the newest few and the best. Only the first rank writes.

    `save` returns once the state is copied to the CPU; a thread writes the file. If the write
    failed, or weights have become NaN or infinite, the next call raises the error.
    """

    def __init__(
        self,
        folder: Path,
        every_steps: int | None,
        step: int,
        writes: bool,
        infinite: Collection[str] = (),
    ) -> None:
        """The run starts at `step`. `infinite`: the `infinite_weights` of the initial model."""
        self._folder, self._every_steps, self._writes = folder, every_steps, writes
        self._infinite = infinite
        self._saved_step, self._saved_time = step, time.monotonic()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def time_is_up(self) -> bool:
        """Returns whether a checkpoint is due by the first rank's clock."""
        return self._writes and time.monotonic() - self._saved_time > SECONDS

    def is_due(self, step: int, time_is_up: bool) -> bool:
        """Returns whether to save after `step`; the same on every rank.

        The ranks agree on `time_is_up` one step late: if the previous step saved, it needs no save.
        """
        by_steps = self._every_steps is not None and step % self._every_steps == 0
        return by_steps or (time_is_up and self._saved_step < step - 1)

    def save(
        self,
        state: State,
        step: int,
        *,
        best: bool = False,
        export: Callable[[State], None] | None = None,
    ) -> None:
        """Copy `state` and write it in the background; `best` also makes it the best checkpoint.

        `export` gets the copy before it is written: a kill in between cannot leave the checkpoint
        of an exported epoch without its model.
        """
        self._saved_step, self._saved_time = step, time.monotonic()
        if self._writes:
            self.wait()
            self._pending = self._thread.submit(self._write, copy_to_cpu(state), step, best, export)

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def finish(self) -> None:
        """Remove all checkpoints of a finished run but the newest and the best."""
        if self._writes:
            self._remove_older(self._saved_step, KEPT - 1)

    def close(self) -> None:
        """Wait for the last checkpoint, then end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def _write(
        self, state: State, step: int, best: bool, export: Callable[[State], None] | None
    ) -> None:
        self._check_finite(state, step)
        if export is not None:
            export(state)
        path = self._folder / f"step-{step:09d}.pt"
        if best:
            # Before `path`: a run that resumes from `path` does not write the best weights again.
            save_tensors(state, self._folder / BEST)
            with replacing(path) as temporary:
                try:
                    temporary.hardlink_to(self._folder / BEST)
                except OSError:  # the file system has no links
                    shutil.copyfile(self._folder / BEST, temporary)
        else:
            save_tensors(state, path)
        self._remove_older(step, KEPT)

    def _remove_older(self, step: int, kept: int) -> None:
        """Keep the newest `kept` checkpoints up to `step`. Later ones do not count: the run resumed
        from an earlier step because they are damaged."""
        whole = [path for saved, path in saved_steps(self._folder).items() if saved <= step]
        for old in whole[kept:]:
            old.unlink(missing_ok=True)

    def _check_finite(self, state: State, step: int) -> None:
        """Raise CheckpointError for NaN or infinity in weights that were finite initially."""
        for part in ("model", "ema"):
            weights = state["learner"].get(part, {})
            for name in infinite_weights(weights) - {*self._infinite}:
                best = self._folder / BEST
                start = f", or from model.weights={best}" if best.exists() else ""
                raise CheckpointError(
                    f"{name} of the {part} holds NaN or infinity after step {step}, which is not "
                    "saved: lower optim.lr, or clip gradients with optim.clip_norm=1, and use "
                    f"another name to restart from scratch{start}"
                )


def infinite_weights(weights: Mapping[str, torch.Tensor]) -> set[str]:
    """Returns the names of weights and buffers that hold NaN or infinity; an attention mask may
    hold -inf."""
    return {name for name, value in weights.items() if not torch.isfinite(value).all()}


def copy_to_cpu(state: State) -> State:
    """Returns the state with its tensors copied to the CPU."""
    copied: State = tree_map_only(
        torch.Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), state
    )
    return copied


def load_state(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Load weights of this model as `nn.Module.load_state_dict` does.

    A state dict records the version of each module, which modules may read; MNASNet refuses weights
    without it. Files and copies lose the versions, so this sets the model's.
    """
    state = OrderedDict(tensors)
    state._metadata = model.state_dict()._metadata  # type: ignore[attr-defined]
    model.load_state_dict(state)


def saved_steps(folder: Path) -> dict[int, Path]:
    """Returns the checkpoints `step-<step>.pt` in `folder` by step, the newest first."""
    named = ((_NAME.fullmatch(path.name), path) for path in folder.glob("step-*.pt"))
    found = {int(name[1]): path for name, path in named if name is not None}
    return dict(sorted(found.items(), reverse=True))


def peek(path: Path) -> State:
    """Returns a checkpoint without reading its tensors; empty for any other file."""
    try:
        content = torch.load(path, "cpu", weights_only=True, mmap=True)
    except Exception:  # for a file that torch did not write, it may raise anything
        return {}
    return content if isinstance(content, dict) else {}


def load_newest(folder: Path) -> State | None:
    """Returns the undamaged checkpoint of the highest step; None if there are no checkpoints.

    Raises:
        CheckpointError: all of them are damaged.
        OSError: one cannot be read, or does not fit into memory; it may be undamaged.
    """
    found = [*saved_steps(folder).items()]
    if (best := folder / BEST).exists():
        found.append((_step_in(best), best))
    for _, path in sorted(found, reverse=True):  # of the same step, step-*.pt before best.pt
        try:
            state = _load_parts(path)
        except DamagedFileError as error:
            logger.warning("checkpoint %s is damaged (%s); trying the previous one", path, error)
            continue
        logger.info("resuming from %s", path)
        return state
    if found:
        raise CheckpointError(
            f"every checkpoint in {folder} is damaged; copy a good one there, or remove them to "
            "restart from scratch"
        )
    return None


def _step_in(path: Path) -> int:
    """Returns the step of a checkpoint; -1 if it cannot be read."""
    state = peek(path)
    progress = state.get("progress", state)  # version 1 keeps the values of all parts in one dict
    try:
        return int(progress["epoch"] * state[IDENTITY][STEPS] + progress["step"])
    except (LookupError, TypeError):
        return -1


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
    """Returns a checkpoint. Version 1 kept the entries of all parts in one dict: each part gets all
    of it, and takes its own entries."""
    state: State = load_tensors(path, verify=True)
    return state if "learner" in state else {**state, **dict.fromkeys(_PARTS, state)}


class DamagedFileError(ValueError):
    """The file is damaged, or not of the expected kind."""


def save_tensors(value: Any, path: Path) -> None:
    """Write `path` with torch.save, whole or not at all. Raises OSError, which names `path`, and
    CheckpointError for objects that `load_tensors` would not read."""
    with replacing(path) as temporary:
        try:
            with temporary.open("wb") as file:
                torch.save(value, file)
        except RuntimeError as error:
            # torch.save replaces the error of a failed write with one that gives no reason.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
        if unread := get_unsafe_globals_in_checkpoint(temporary):
            raise CheckpointError(
                f"{path.name} would hold {listed(unread)} and could not be read again: the state "
                "of your own model and optimizer must be tensors, numbers, texts, lists and dicts"
            )


def load_tensors(path: Path, *, verify: bool = False) -> Any:
    """Read a file with torch.load, without executing anything in it.

    `verify` also compares the checksums that torch.save wrote, which torch.load does not.

    Raises:
        DamagedFileError: the file is cut short, changed or another kind of file.
        OSError: it cannot be read, or does not fit into memory; it may be undamaged.
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
        # The rest of torch's message is advice for developers.
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise DamagedFileError(_explain_damage(path, reason or type(error).__name__)) from error


def load_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file. Raises DamagedFileError and OSError."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise DamagedFileError(_explain_damage(path, str(error).partition("\n")[0])) from error


def _explain_damage(path: Path, reason: str) -> str:
    """Returns what kind of file it is, or `reason` if it is of the right kind."""
    kind = name_kind(path) if path.is_file() else None
    return reason if kind is None else f"it is {kind}"
