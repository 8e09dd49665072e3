"""What can be counted from pairs `(true class, predicted class)`: float64 `(N, 2)`."""

from __future__ import annotations

import torch
from torch import Tensor

from entry_point.training.tasks.task import Table

LARGEST_MATRIX = 40
MOST_CONFUSED = 20
MOST_CLASSES = 100


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
