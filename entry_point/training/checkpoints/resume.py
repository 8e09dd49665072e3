"""The newest good checkpoint, read once and given to every rank."""

from __future__ import annotations

from pathlib import Path

from entry_point.training.checkpoints.checkpoint import State, load_newest
from entry_point.training.devices import Devices


def load_on_all_ranks(folder: Path, devices: Devices) -> State | None:
    """The first rank's newest checkpoint; hosts may have been given different ones."""
    state: State | None = devices.from_first(load_newest(folder) if devices.is_first else None)
    return state
