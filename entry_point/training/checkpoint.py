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

from entry_point.training import atomic

logger = logging.getLogger(__name__)

State = dict[str, Any]

_NAME = re.compile(r"step-(\d+)\.pt")
BEST = "best.pt"


class CheckpointWriter:
    """Writes `step-<step>.pt`, keeps the newest few and the best; on the first rank only.

    `save` returns once the state is copied to the CPU; a thread makes the file. A failed write
    is raised by the next call.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
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
        path = self._folder / f"step-{step:09d}.pt"
        with atomic.replacing(path) as temporary:
            torch.save(state, temporary)
        if best:
            with atomic.replacing(self._folder / BEST) as temporary:
                os.link(path, temporary)
        for old in _newest_first(self._folder)[self._keep :]:
            old.unlink(missing_ok=True)


def copied_to_cpu(leaf: Any) -> Any:
    """A tensor's copy; anything else as it is."""
    return leaf.detach().to("cpu", copy=True) if isinstance(leaf, torch.Tensor) else leaf


def load_newest(folder: Path) -> State | None:
    """The newest checkpoint that can be read whole; a damaged one is reported and passed over."""
    for path in _newest_first(folder):
        try:
            state = load_checkpoint(path)
        except Exception as error:
            logger.warning("checkpoint %s is damaged (%s): trying the one before", path, error)
            continue
        logger.info("going on from %s", path)
        return state
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
