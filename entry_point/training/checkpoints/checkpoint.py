"""Checkpoints that are whole or absent, written beside the training, read with suspicion."""

from __future__ import annotations

import logging
import os
import re
import zipfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from entry_point.contract.whole_file import replacing

logger = logging.getLogger(__name__)

State = dict[str, Any]

_NAME = re.compile(r"step-(\d+)\.pt")
BEST = "best.pt"
ASIDE = "aside-"


class CheckpointError(RuntimeError):
    """There are checkpoints, but none to go on from; or one that nobody should go on from."""


class CheckpointWriter:
    """Writes `step-<step>.pt`, keeps the newest few and the best; on the first rank only.

    `save` returns once the state is copied to the CPU; a thread makes the file. A failed write
    is raised by the next call, and so is a state with weights that are NaN or infinite.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        for left in (*folder.glob(".step-*.pt.*"), *folder.glob(f".{BEST}.*")):
            left.unlink()  # of a process that was killed while it wrote
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def save(self, state: State, step: int, *, best: bool = False) -> None:
        """Copy `state` and have it written; `best` also makes it the best checkpoint."""
        self.wait()
        copied = tree_map(copied_to_cpu, state)
        self._pending = self._thread.submit(self._write, copied, step, best)

    def wait(self) -> None:
        """Until the last checkpoint is on disk."""
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
        with replacing(path) as temporary:
            torch.save(state, temporary)
        if best:
            with replacing(self._folder / BEST) as temporary:
                os.link(path, temporary)
        others = [old for old in _newest_first(self._folder) if old != path]
        for old in others[self._keep - 1 :]:
            old.unlink(missing_ok=True)


def copied_to_cpu(leaf: Any) -> Any:
    """A tensor's copy; anything else as it is."""
    return leaf.detach().to("cpu", copy=True) if isinstance(leaf, torch.Tensor) else leaf


def _check_finite(state: State, step: int, folder: Path) -> None:
    for part in ("model", "ema"):
        for name, value in (state.get(part) or {}).items():
            if not torch.isfinite(value).all():
                raise CheckpointError(
                    f"after step {step} the {part}'s {name} holds NaN or infinity; the "
                    f"checkpoints in {folder} are from before; lower optim.lr, or clip gradients "
                    "with optim.clip_norm"
                )


def set_aside(folder: Path, after: int) -> None:
    """Rename the checkpoints of steps after `after`, the one gone on from: they are damaged, or
    another run's, and would pass for newer ones. 0 means that the run begins anew.
    """
    aside = [p for p in _newest_first(folder) if int(p.stem.removeprefix("step-")) > after]
    if not after and (folder / BEST).exists():
        aside.append(folder / BEST)
    for path in aside:
        path.replace(path.with_name(ASIDE + path.name))
        logger.warning("%s is not gone on from: renamed to %s", path, ASIDE + path.name)


def load_newest(folder: Path) -> State | None:
    """The newest checkpoint that can be read whole; a damaged one is reported and passed over.

    Raises:
        CheckpointError: all of them are damaged.
        OSError: one cannot be read, which does not say that it is damaged.
    """
    paths = [*_newest_first(folder), *folder.glob(BEST)]
    for path in paths:
        try:
            state = load_checkpoint(path)
        except OSError:
            raise
        except Exception as error:
            logger.warning("checkpoint %s is damaged (%s): trying the one before", path, error)
            continue
        logger.info("going on from %s", path)
        return state
    if paths:
        raise CheckpointError(
            f"all {len(paths)} checkpoints in {folder} are damaged; put a good one there, or set "
            "trainer.resume=false to begin anew"
        )
    return None


def load_checkpoint(path: Path) -> State:
    """Read one checkpoint; nothing in it is executed.

    Raises:
        an exception of zipfile, pickle or torch if it is not whole.
    """
    # torch.load does not verify the checksums that torch.save wrote.
    with zipfile.ZipFile(path) as archive:
        if (broken := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"checksum of {broken} does not match")
    state: State = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _newest_first(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("step-*.pt") if _NAME.fullmatch(p.name)), reverse=True)
