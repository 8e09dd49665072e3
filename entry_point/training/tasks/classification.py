"""One class per image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from entry_point.config.task_config import ClassificationKwargs
from entry_point.config.train_config import TrainConfig
from entry_point.contract.metrics_line import METRICS_OF, Metric
from entry_point.data.sources.source import Source
from entry_point.training.tasks import class_tables
from entry_point.training.tasks.loss_weights import class_weights, inverse_frequency
from entry_point.training.tasks.losses import choose_loss, cross_entropy, focal
from entry_point.training.tasks.task import Export, Table, Task

TOP = 5


class Classification(Task):
    """Scores are `(loss, class, predicted class, its probability)`, and for more than five classes
    whether the five likeliest include the right one."""

    takes = "class"
    blends: Sequence[str] = ("mixup", "cutmix")

    def __init__(
        self,
        train: Source,
        config: TrainConfig,
        device: torch.device,
        gamma: float = ClassificationKwargs.gamma,
    ) -> None:
        self.names = list(train.classes)
        self.outputs = len(self.names)
        self.export = Export("classification", nn.Softmax(dim=1))
        self._has_top = len(self.names) > TOP
        known = METRICS_OF["classification"]
        self.metrics: Sequence[Metric] = [
            m for m in known if self._has_top or m.name != "top5_accuracy"
        ]
        task = config.task
        weights = class_weights(task, train, inverse_frequency, device)
        smoothing = task.label_smoothing
        losses = {
            "cross_entropy": partial(cross_entropy, weights=weights, smoothing=smoothing),
            "focal": partial(focal, weights=weights, smoothing=smoothing, gamma=gamma),
        }
        self._loss = choose_loss(task, losses)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Each sample's loss in evaluation, `(N,)`: cross-entropy without weights or smoothing, so
        that runs can be compared."""
        return functional.cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        probabilities = self.export.head(outputs)
        columns = [self.losses(outputs, targets), targets, *reversed(probabilities.max(1))]
        if self._has_top:
            columns.append((probabilities.topk(TOP).indices == targets[:, None]).any(1))
        return torch.stack([column.double() for column in columns], 1)

    def measure(self, scores: Tensor) -> dict[str, float]:
        hits = scores[:, 1] == scores[:, 2]
        values = {
            "accuracy": float(hits.sum()) / len(hits),
            "balanced_accuracy": class_tables.balanced_accuracy(scores[:, 1:3], len(self.names)),
        }
        if self._has_top:
            values["top5_accuracy"] = float(scores[:, 4].sum()) / len(scores)
        return values

    def tables(self, scores: Tensor) -> list[Table]:
        pairs = scores[:, 1:3]
        return [
            class_tables.precision_and_recall(pairs, self.names),
            class_tables.confusion(pairs, self.names),
            class_tables.calibration(scores[:, 1:4]),
        ]

    def mistakes(self, scores: Tensor, most: int) -> list[tuple[int, str]]:
        rows = (scores[:, 1] != scores[:, 2]).nonzero()[:, 0]
        worst = rows[scores[rows, 0].argsort(descending=True, stable=True)[:most]].tolist()
        found = []
        for row in worst:
            loss, true, predicted = scores[row, :3].tolist()
            names = f"{self.names[int(true)]}, predicted {self.names[int(predicted)]}"
            found.append((row, f"{names} (loss {loss:.2f})"))
        return found
