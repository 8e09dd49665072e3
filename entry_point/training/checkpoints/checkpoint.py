"""Writes checkpoints: when one is due, atomically, in a background thread."""

from __future__ import annotations

import logging
import re
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from entry_point.contract.whole_file import replacing
from entry_point.training.tensor_file import save_tensors

logger = logging.getLogger(__name__)

State = dict[str, Any]

_NAME = re.compile(r"step-(\d+)\.pt")
BEST = "best.pt"
KEPT = 2
"""Newest checkpoints, beside the best one."""
SECONDS = 600.0
"""Between checkpoints by time: what a lost machine costs at most."""
ASIDE = "aside-"


class CheckpointError(RuntimeError):
    """No checkpoint can be read, or the state is not worth saving."""


class Checkpoints:
    """Writes `step-<step>.pt`; keeps the newest few and the best. Only the first rank writes.

    `save` returns once the state is copied to the CPU; a thread writes the file. The next call
    raises the error of a failed write, or of weights that are NaN or infinite.
    """

    def __init__(self, folder: Path, every_steps: int | None, step: int, writes: bool) -> None:
        """The run starts at `step`: checkpoints of later steps are set aside."""
        self._folder, self._every_steps, self._writes = folder, every_steps, writes
        self._saved_step, self._saved_time = step, time.monotonic()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        if writes:
            _set_aside(folder, after=step)

    def time_is_up(self) -> bool:
        """Whether one is due by the first rank's clock."""
        return self._writes and time.monotonic() - self._saved_time > SECONDS

    def is_due(self, step: int, time_is_up: bool) -> bool:
        """Whether to save after `step`; the same on every rank.

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

    def close(self) -> None:
        """Wait for the last checkpoint, then end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def _write(self, state: State, step: int, best: bool) -> None:
        _check_finite(state, step, self._folder)
        path = self._folder / f"step-{step:09d}.pt"
        save_tensors(state, path)
        if best:
            with replacing(self._folder / BEST) as temporary:
                shutil.copyfile(path, temporary)
        others = [old for old in newest_first(self._folder) if old != path]
        for old in others[KEPT - 1 :]:
            old.unlink(missing_ok=True)


def copy_to_cpu(state: State) -> State:
    """The state with its tensors copied to the CPU."""
    copied: State = tree_map(
        lambda leaf: leaf.detach().to("cpu", copy=True) if isinstance(leaf, torch.Tensor) else leaf,
        state,
    )
    return copied


def newest_first(folder: Path) -> list[Path]:
    """The checkpoints `step-<step>.pt` in `folder`."""
    return sorted((p for p in folder.glob("step-*.pt") if _NAME.fullmatch(p.name)), reverse=True)


def _check_finite(state: State, step: int, folder: Path) -> None:
    for part in ("model", "ema"):
        for name, value in (state.get(part) or {}).items():
            if not torch.isfinite(value).all():
                raise CheckpointError(
                    f"{name} of the {part} holds NaN or infinity after step {step}; the "
                    f"checkpoints in {folder} are from before; lower optim.lr, or clip gradients "
                    "with optim.clip_norm"
                )


def _set_aside(folder: Path, after: int) -> None:
    """Rename the checkpoints of steps after `after`: they are damaged, and a later start would take
    them for the newest."""
    for path in newest_first(folder):
        if int(path.stem.removeprefix("step-")) <= after:
            break
        path.replace(path.with_name(ASIDE + path.name))
        logger.warning("checkpoint %s is set aside as %s", path, ASIDE + path.name)
