"""Typed settings of `make check-dataset`."""

from __future__ import annotations

from dataclasses import dataclass

from entry_point.config.knob import check_knobs, knob


@dataclass
class CheckConfig:
    """Reading a dataset from end to end to find damage."""

    root: str
    """Folder with `train/<class>/*.jpg` and `val/<class>/*.jpg`, or what `make dataset` wrote."""
    workers: int | None = knob(None, least=1, most=1024)
    """Threads. null: one per usable core."""

    def __post_init__(self) -> None:
        check_knobs(self)
