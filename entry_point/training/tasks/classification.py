"""One class per image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from entry_point.config.config_errors import ConfigError
from entry_point.config.resolve import full_name
from entry_point.config.task_config import TaskKwargs
from entry_point.config.train_config import TrainConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.source import Source
from entry_point.job.known_tasks import TASKS, Metric
from entry_point.training.tasks.losses import (
    choose_loss,
    class_weights,
    cross_entropy,
    focal,
    inverse_frequency,
    require_columns,
)
from entry_point.training.tasks.task import Share, Size, Table, Task, best_by_name

if TYPE_CHECKING:
    import polars as pl

TOP = 5
LARGEST_MATRIX = 40
MOST_CONFUSED = 20
MOST_CLASSES = 100
BINS = 10


class Classification(Task):
    """Scores are `(loss, class, predicted class, its probability)` and, with more than five
    classes, whether the five likeliest include the right one."""

    takes = "class"
    blends: Sequence[str] = ("mixup", "cutmix")

    def __init__(
        self,
        train: Source,
        config: TrainConfig,
        device: torch.device,
        gamma: float = TaskKwargs.gamma,
    ) -> None:
        self.names = list(train.classes)
        if len(self.names) < 2:
            raise DataError(
                f"all images belong to the class {self.names[0]!r}, and training needs two: if it "
                "is a folder of class folders, set data.root to it"
            )
        self.outputs, self._model = len(self.names), config.model
        self.head: nn.Module = nn.Softmax(dim=1)
        self._has_top = len(self.names) > TOP
        known = TASKS["classification"].metrics
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
        require_columns(outputs, targets, self.outputs, self._model)
        return self._loss(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the evaluation loss of each sample, `(N,)`: cross-entropy without weights or
        smoothing, so that runs can be compared."""
        return functional.cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        probabilities = self.head(outputs)
        if probabilities.shape[1:] != (len(self.names),):
            shape = ", ".join(["N", *map(str, probabilities.shape[1:])])
            message = f"head must answer (N, {len(self.names)}), a probability for each name, not "
            raise ConfigError("task.name", full_name(self), f"{message}({shape})")
        columns = [self.losses(outputs, targets), targets, *reversed(probabilities.max(1))]
        if self._has_top:
            columns.append((probabilities.topk(TOP).indices == targets[:, None]).any(1))
        return torch.stack([column.double() for column in columns], 1)

    def measure(self, scores: Tensor) -> dict[str, float]:
        hits = scores[:, 1] == scores[:, 2]
        of, _, right = _counts(scores[:, 1:3], len(self.names))
        values = {
            "accuracy": float(hits.sum()) / len(hits),
            # Mean recall of the classes that occur.
            "balanced_accuracy": float((right / of)[of > 0].mean()),
        }
        if self._has_top:
            values["top5_accuracy"] = float(scores[:, 4].sum()) / len(scores)
        return values

    def tables(self, scores: Tensor) -> list[Table]:
        pairs = scores[:, 1:3]
        return [
            precision_and_recall(pairs, self.names),
            confusion(pairs, self.names),
            calibration(scores[:, 1:4]),
        ]

    def outcomes(self, scores: Tensor) -> dict[str, list[Any]]:
        labels, answers = (
            [self.names[place] for place in column.tolist()] for column in scores[:, 1:3].long().T
        )
        return {"label": labels, "answer": answers, "probability": scores[:, 3].tolist()}

    def mistakes(self, scores: Tensor, most: int) -> list[tuple[int, str]]:
        rows = (scores[:, 1] != scores[:, 2]).nonzero()[:, 0]
        worst = rows[scores[rows, 0].argsort(descending=True, stable=True)[:most]].tolist()
        found = []
        for row in worst:
            loss, true, predicted = scores[row, :3].tolist()
            names = f"{self.names[int(true)]}, predicted {self.names[int(predicted)]}"
            found.append((row, f"{names} (loss {loss:.2f})"))
        return found

    def rows(self, answers: Tensor, sizes: Sequence[Size]) -> pl.DataFrame:
        import polars as pl

        values = answers.numpy()
        likeliest = values.argmax(1)
        columns = {
            "class": [self.names[place] for place in likeliest],
            "class_index": likeliest,
            "probability": values.max(1),
        }
        types = {"class": pl.String, "class_index": pl.Int32, "probability": pl.Float32}
        return pl.DataFrame(columns, types).hstack(super().rows(answers, sizes))

    def describe(self, answer: Tensor, size: Size, top: int | None) -> dict[str, Any]:  # noqa: ARG002
        row = answer.numpy()
        likeliest = int(row.argmax())
        return {
            "class": self.names[likeliest],
            "probability": round(float(row[likeliest]), 6),
            "probabilities": best_by_name(row, self.names, top),
        }


def _counts(pairs: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns counts per class, float64: its samples, its predictions, and the right predictions.

    `pairs`, here and below, are (true class, predicted class), float64 `(N, 2)`.
    """
    true, predicted = pairs.long().T
    hits = true[true == predicted]
    of, as_, right = (each.bincount(minlength=classes) for each in (true, predicted, hits))
    return of.double(), as_.double(), right.double()


def precision_and_recall(pairs: Tensor, names: list[str]) -> Table:
    """Returns one row per class, `-` for undefined values; of many classes, those with the lowest
    recall."""
    of, as_, right = _counts(pairs, len(names))
    recall = right / of
    order, note, shown = list(range(len(names))), "", None
    if len(names) > MOST_CLASSES:
        order, shown = recall.nan_to_num(2.0).argsort(stable=True).tolist(), MOST_CLASSES
        note = f"The {MOST_CLASSES} of {len(names)} classes with the lowest recall."
    rows = [(names[i], Share(right[i] / as_[i]), Share(recall[i]), int(of[i])) for i in order]
    return Table("Classes", ("class", "precision", "recall", "images"), rows, note, shown=shown)


def confusion(pairs: Tensor, names: list[str]) -> Table:
    """Returns the confusion matrix; for many classes, the most frequent confusions."""
    # Sparse, because a full matrix of many classes would not fit into memory.
    kinds, counts = pairs.long().unique(dim=0, return_counts=True)
    if len(names) <= LARGEST_MATRIX:
        matrix = torch.zeros(len(names), len(names), dtype=torch.int64)
        matrix[kinds[:, 0], kinds[:, 1]] = counts
        rows = [(name, *row) for name, row in zip(names, matrix.tolist(), strict=True)]
        note = "Rows are the true classes, columns the predicted ones."
        return Table("Confusion matrix", ("", *names), rows, note, shaded=True)
    wrong = kinds[:, 0] != kinds[:, 1]
    kinds, counts = kinds[wrong], counts[wrong]
    order = counts.argsort(descending=True, stable=True)
    pairs_and_counts = zip(kinds[order].tolist(), counts[order].tolist(), strict=True)
    rows = [(names[true], names[predicted], n) for (true, predicted), n in pairs_and_counts]
    head = ("true", "predicted", "images")
    return Table("Most frequent confusions", head, rows, shown=MOST_CONFUSED)


def calibration(scores: Tensor) -> Table:
    """Returns the share of right predictions by their probability, in bins of a tenth.

    `scores` are `(true class, predicted class, its probability)`. Guo et al., "On Calibration of
    Modern Neural Networks" (ICML 2017), section 2.
    """
    true, predicted, probability = scores.T
    bins = (probability * BINS).ceil().long().clamp(1, BINS) - 1
    images = bins.bincount(minlength=BINS)
    sure = bins.bincount(probability, minlength=BINS)
    right = bins.bincount((true == predicted).double(), minlength=BINS)
    rows = [
        (
            f"{100 * i // BINS} to {100 * (i + 1) // BINS} %",
            int(images[i]),
            Share(sure[i] / images[i]),
            Share(right[i] / images[i]),
        )
        for i in range(BINS)
        if images[i]
    ]
    error = float((sure - right).abs().sum()) / len(scores)
    note = f"Expected calibration error: {100 * error:.2f} %, in {BINS} bins."
    return Table("Calibration", ("probability", "images", "mean confidence", "correct"), rows, note)
