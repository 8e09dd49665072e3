"""Any number of labels per image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from entry_point.config.task_config import TaskKwargs
from entry_point.config.train_config import TrainConfig
from entry_point.data.sources.source import Source
from entry_point.job.known_tasks import TASKS
from entry_point.training.tasks.losses import (
    binary_focal,
    choose_loss,
    class_weights,
    inverse_odds,
    require_columns,
)
from entry_point.training.tasks.task import Share, Size, Table, Task, best_by_name

if TYPE_CHECKING:
    import polars as pl


class Multilabel(Task):
    """Scores are the loss, then each label's target, then each label's probability."""

    takes = "labels"
    blends = ("mixup", "cutmix")
    metrics = TASKS["multilabel"].metrics

    def __init__(
        self,
        train: Source,
        config: TrainConfig,
        device: torch.device,
        gamma: float = TaskKwargs.gamma,
        threshold: float = TaskKwargs.threshold,
    ) -> None:
        task = config.task
        self.names = list(train.classes)
        self.outputs, self._model = len(self.names), config.model
        self.threshold = threshold
        self.head: nn.Module = nn.Sigmoid()
        weights = class_weights(task, train, inverse_odds, device)
        losses = {
            "binary_cross_entropy": partial(
                functional.binary_cross_entropy_with_logits, pos_weight=weights
            ),
            "focal": partial(binary_focal, weights=weights, gamma=gamma),
        }
        self._loss = choose_loss(task, losses)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        require_columns(outputs, targets, self.outputs, self._model)
        return self._loss(outputs, targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        columns = [losses.mean(1, keepdim=True), targets, self.head(outputs)]
        return torch.cat([column.double() for column in columns], 1)

    def measure(self, scores: Tensor) -> dict[str, float]:
        present, probabilities, found = self._parts(scores)
        right = (present & found).sum(0)
        # F1 = 2 x right / (predicted + present); 0 for labels that are neither.
        both = present.sum(0) + found.sum(0)
        return {
            "map": float(average_precision(probabilities, present).nanmean()),
            "f1_micro": 2 * int(right.sum()) / max(1, int(both.sum())),
            "f1_macro": float((2 * right.double() / both.clamp(min=1)).mean()),
        }

    def tables(self, scores: Tensor) -> list[Table]:
        present, probabilities, found = self._parts(scores)
        right, of, as_ = (present & found).double().sum(0), present.sum(0), found.sum(0)
        columns = (average_precision(probabilities, present), right / as_, right / of)
        shares = [map(Share, column.tolist()) for column in columns]
        rows = list(zip(self.names, *shares, of.tolist(), strict=True))
        note = f"Precision and recall at task.kwargs.threshold={self.threshold:g}."
        head = ("label", "average precision", "precision", "recall", "images")
        return [Table("Labels", head, rows, note)]

    def outcomes(self, scores: Tensor) -> dict[str, list[Any]]:
        present, _, found = self._parts(scores)
        return {
            name: [list(compress(self.names, row)) for row in rows.tolist()]
            for name, rows in (("label", present), ("answer", found))
        }

    def mistakes(self, scores: Tensor, most: int) -> list[tuple[int, str]]:
        present, _, found = self._parts(scores)
        rows = (present != found).any(1).nonzero()[:, 0]
        worst = rows[scores[rows, 0].argsort(descending=True, stable=True)[:most]].tolist()
        captions = []
        for row in worst:
            missed, wrong = (
                ", ".join(self.names[i] for i in which.nonzero()[:, 0].tolist()) or "none"
                for which in (present[row] & ~found[row], found[row] & ~present[row])
            )
            loss = float(scores[row, 0])
            captions.append((row, f"missed: {missed}; wrong: {wrong} (loss {loss:.2f})"))
        return captions

    def rows(self, answers: Tensor, sizes: Sequence[Size]) -> pl.DataFrame:
        import polars as pl

        columns = {"labels": [self._found(answer) for answer in answers]}
        found = pl.DataFrame(columns, {"labels": pl.List(pl.String)})
        return found.hstack(super().rows(answers, sizes))

    def describe(self, answer: Tensor, size: Size, top: int | None) -> dict[str, Any]:  # noqa: ARG002
        probabilities = best_by_name(answer.numpy(), self.names, top)
        return {"labels": self._found(answer), "probabilities": probabilities}

    def _found(self, answer: Tensor) -> list[str]:
        """Returns the labels that reach the threshold."""
        places = (answer.double() >= self.threshold).nonzero()[:, 0].tolist()
        return [self.names[place] for place in places]

    def _parts(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns whether a label is present, its probability, and whether it is predicted, each
        `(N, labels)`."""
        targets, probabilities = scores[:, 1:].chunk(2, 1)
        return targets > 0.5, probabilities, probabilities >= self.threshold


def average_precision(probabilities: Tensor, present: Tensor) -> Tensor:
    """Returns the area below the precision-recall steps, `(labels,)` from `(N, labels)`.

    As in scikit-learn, samples of equal probability count together. NaN for labels without samples.
    """
    values = []
    for probability, positive in zip(probabilities.T, present.T, strict=True):
        order = probability.argsort(descending=True, stable=True)
        probability, hits = probability[order], positive[order].double().cumsum(0)
        last = torch.ones_like(positive)
        last[:-1] = probability[1:] != probability[:-1]
        ranks = torch.arange(1, len(last) + 1, dtype=torch.float64)
        gained = hits[last].diff(prepend=torch.zeros(1, dtype=torch.float64))
        values.append((gained * hits[last] / ranks[last]).sum() / positive.sum())
    return torch.stack(values)
