"""Labels without images: what a task is built from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from entry_point.config.train_config import load_train_config
from entry_point.data.sources.source import Source
from entry_point.training.tasks.build_task import build_task
from entry_point.training.tasks.task import Task

CPU = torch.device("cpu")


@dataclass
class _Labels:
    kind: str
    classes: list[str]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def labels(kind: str, names: list[str], values: Tensor) -> Source:
    """A source of these labels; it has no images."""
    return cast(Source, _Labels(kind, names, values))


def classes(count: int) -> Source:
    """Two samples of each of `count` classes, named a, b, ..."""
    return labels("class", [chr(97 + i) for i in range(count)], torch.arange(2 * count) % count)


def task_of(source: Source, *overrides: str, device: torch.device = CPU) -> Task:
    """The task that the overrides describe, for this source."""
    config, _ = load_train_config(["data=folder", *overrides])
    return build_task(config, source, device)
