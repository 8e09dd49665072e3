"""The report's tables of a classification, from its samples' scores, float64 `(N, columns)`.

`pairs` are `(true class, predicted class)`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from entry_point.training.tasks.task import Table

LARGEST_MATRIX = 40
MOST_CONFUSED = 20
MOST_CLASSES = 100
BINS = 10


def _counts(pairs: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Per class, float64: samples of it, predictions of it, and those that are right."""
    true, predicted = pairs.long().T
    hits = true[true == predicted]
    of, as_, right = (each.bincount(minlength=classes) for each in (true, predicted, hits))
    return of.double(), as_.double(), right.double()


def balanced_accuracy(pairs: Tensor, classes: int) -> float:
    """The mean recall of the classes that occur."""
    of, _, right = _counts(pairs, classes)
    return float((right / of)[of > 0].mean())


def precision_and_recall(pairs: Tensor, names: list[str]) -> Table:
    """One row per class, `-` for what is not defined; of many, those with the lowest recall."""
    of, as_, right = _counts(pairs, len(names))
    recall = right / of
    order, note = list(range(len(names))), ""
    if len(names) > MOST_CLASSES:
        order = recall.nan_to_num(2.0).argsort(stable=True)[:MOST_CLASSES].tolist()
        note = f"The {MOST_CLASSES} of {len(names)} classes with the lowest recall."
    rows = [
        (names[i], _share(right[i], as_[i]), _share(right[i], of[i]), int(of[i])) for i in order
    ]
    return Table("Classes", ("class", "precision", "recall", "images"), rows, note)


def _share(part: Tensor, whole: Tensor) -> str:
    return f"{100 * float(part / whole):.2f} %" if whole else "-"


def confusion(pairs: Tensor, names: list[str]) -> Table:
    """The confusion matrix; for many classes, the most frequent confusions."""
    # Sparse: a full matrix of many classes would not fit.
    kinds, counts = pairs.long().unique(dim=0, return_counts=True)
    if len(names) > LARGEST_MATRIX:
        return _most_confused(kinds, counts, names)
    matrix = torch.zeros(len(names), len(names), dtype=torch.int64)
    matrix[kinds[:, 0], kinds[:, 1]] = counts
    rows = [(name, *row) for name, row in zip(names, matrix.tolist(), strict=True)]
    note = "Rows are the true classes, columns the predicted ones."
    return Table("Confusion matrix", ("", *names), rows, note, shaded=True)


def _most_confused(kinds: Tensor, counts: Tensor, names: list[str]) -> Table:
    wrong = kinds[:, 0] != kinds[:, 1]
    kinds, counts = kinds[wrong], counts[wrong]
    most = counts.argsort(descending=True, stable=True)[:MOST_CONFUSED]
    rows = [
        (names[true], names[predicted], count)
        for (true, predicted), count in zip(
            kinds[most].tolist(), counts[most].tolist(), strict=True
        )
    ]
    return Table("Most frequent confusions", ("true", "predicted", "images"), rows)


def calibration(scores: Tensor) -> Table:
    """How often predictions of a probability are right, by tenths of the probability.

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
            _share(sure[i], images[i]),
            _share(right[i], images[i]),
        )
        for i in range(BINS)
        if images[i]
    ]
    error = float((sure - right).abs().sum()) / len(scores)
    note = f"Expected calibration error: {100 * error:.2f} %, in {BINS} bins."
    return Table("Calibration", ("probability", "images", "mean", "right"), rows, note)
