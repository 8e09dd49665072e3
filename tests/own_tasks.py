"""Tasks of the tests; a setting names them by dotted path."""

# ruff: noqa: ARG002 - every task has these arguments

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from entry_point.config.train_config import TrainConfig
from entry_point.data.sources.source import Source
from entry_point.training.tasks.classification import Classification
from entry_point.training.tasks.task import Metric, Table, Task


class Pixels(Task):
    """A class for each pixel."""

    takes = "targets"
    blends = ()
    metrics = (Metric("accuracy", "pixel accuracy", higher_is_better=True),)

    def __init__(self, train: Source, config: TrainConfig, device: torch.device) -> None:
        self.names, self.outputs = list(train.classes), len(train.classes)
        self.head = nn.Softmax(dim=1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = functional.cross_entropy(outputs, targets, reduction="none").mean((1, 2))
        hits = (outputs.argmax(1) == targets).double().mean((1, 2))
        return torch.stack([losses.double(), hits], 1)

    def measure(self, scores: Tensor) -> dict[str, float]:
        return {"accuracy": float(scores[:, 1].mean())}

    def tables(self, scores: Tensor) -> list[Table]:
        return []

    def mistakes(self, scores: Tensor, most: int) -> list[tuple[int, str]]:
        return []


class Unmeasured(Classification):
    """Tracks a metric that it does not measure."""

    def __init__(self, train: Source, config: TrainConfig, device: torch.device) -> None:
        super().__init__(train, config, device)
        self.metrics = [Metric("recall", "recall"), *self.metrics]
