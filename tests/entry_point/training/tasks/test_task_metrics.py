"""The metrics equal scikit-learn's."""

import warnings
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics
from torch.nn import functional

from entry_point.training.tasks.task import Task
from tests.entry_point.training.tasks.label_sources import classes, labels, task_of

CLASSES, LABELS = 7, 3


@cache
def classifying() -> Task:
    return task_of(classes(CLASSES))


@cache
def labeling() -> Task:
    return task_of(labels("labels", list("abc"), torch.eye(LABELS)), "task=multilabel")


@cache
def measuring() -> Task:
    names, numbers = ["x", "y"], torch.tensor([[0.0, -2], [1, 2]])
    return task_of(labels("numbers", names, numbers), "task=regression")


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 4))
def test_metrics_of_classes_are_those_of_scikit_learn(seed: int, count: int, levels: int) -> None:
    draw = np.random.default_rng(seed)
    # Few levels give ties, and classes that never occur or are never predicted.
    outputs = torch.tensor(
        draw.integers(0, levels, (count, CLASSES)) + draw.random((count, CLASSES))
    )
    targets = torch.tensor(draw.integers(0, draw.integers(1, CLASSES + 1), count))
    task = classifying()
    found = task.measure(task.scores(outputs.float(), targets))
    probabilities, predicted = outputs.float().softmax(1).numpy(), outputs.argmax(1).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes without samples
        expected = {
            "accuracy": metrics.accuracy_score(targets, predicted),
            "balanced_accuracy": metrics.balanced_accuracy_score(targets, predicted),
            "top5_accuracy": metrics.top_k_accuracy_score(
                targets, probabilities, k=5, labels=range(CLASSES)
            ),
        }
    assert found == pytest.approx(expected, abs=1e-12)
    table, _, calibration = task.tables(task.scores(outputs.float(), targets))
    shown = {row[0]: row[1:3] for row in table.rows}
    precision, recall, _, _ = metrics.precision_recall_fscore_support(
        targets, predicted, labels=range(CLASSES), zero_division=np.nan
    )
    for i, name in enumerate(task.names):
        assert shown[name] == pytest.approx((precision[i], recall[i]), nan_ok=True)
        expected_cells = [f"{100 * v:.2f} %" if v == v else "-" for v in (precision[i], recall[i])]
        assert [*map(str, shown[name])] == expected_cells
    sure, right, error = probabilities.max(1), predicted == targets.numpy(), 0.0
    for low in range(10):
        inside = (np.ceil(sure.astype(np.float64) * 10).clip(1, 10) - 1) == low
        rows = [row for row in calibration.rows if row[0] == f"{10 * low} to {10 * low + 10} %"]
        assert [row[1] for row in rows] == ([inside.sum()] if inside.any() else [])
        error += abs(sure[inside].astype(np.float64).sum() - right[inside].sum()) / count
    shown_error = float(calibration.note.removeprefix("Expected calibration error: ").split()[0])
    assert shown_error == pytest.approx(100 * error, abs=0.006)


def test_the_loss_of_a_sample_is_its_cross_entropy() -> None:
    outputs, targets, task = torch.randn(6, CLASSES), torch.arange(6), classifying()
    expected = functional.cross_entropy(outputs, targets, reduction="none")
    torch.testing.assert_close(task.scores(outputs, targets)[:, 0], expected.double())


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(2, 40))
def test_metrics_of_labels_are_those_of_scikit_learn(seed: int, count: int, levels: int) -> None:
    draw = np.random.default_rng(seed)
    # Of few levels, many probabilities are equal.
    outputs = torch.tensor(draw.integers(-levels, levels, (count, LABELS)) / 4).float()
    targets = torch.tensor(draw.random((count, LABELS)) < draw.random(LABELS)).float()
    task = labeling()
    scores = task.scores(outputs, targets)
    found = task.measure(scores)
    present, probabilities = targets.numpy() > 0, outputs.sigmoid().double().numpy()
    chosen = probabilities >= 0.5
    expected = {
        f"f1_{average}": metrics.f1_score(present, chosen, average=average, zero_division=0)
        for average in ("micro", "macro")
    }
    occurring = present.any(0)
    if occurring.any():
        expected["map"] = metrics.average_precision_score(
            present[:, occurring], probabilities[:, occurring], average="macro"
        )
    assert {k: v for k, v in found.items() if v == v} == pytest.approx(expected, abs=1e-12)
    (table,) = task.tables(scores)
    scored = (metrics.precision_score, metrics.recall_score)
    columns = [score(present, chosen, average=None, zero_division=np.nan) for score in scored]
    rows = [row[2:4] for row in table.rows]
    assert np.array(rows) == pytest.approx(np.array(columns).T, abs=1e-12, nan_ok=True)
    # Float32 probabilities near 1 are too coarse for their logarithm.
    precise = outputs.double().sigmoid().numpy()
    loss = metrics.log_loss(present.ravel(), precise.ravel(), labels=[False, True])
    # In float32, logits of size x leave x times its precision.
    rounding = 2 * torch.finfo(torch.float32).eps * (1 + float(outputs.abs().max()))
    assert float(scores[:, 0].mean()) == pytest.approx(loss, rel=1e-6, abs=rounding)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(2, 60))
def test_metrics_of_numbers_are_those_of_scikit_learn(seed: int, count: int) -> None:
    draw = np.random.default_rng(seed)
    outputs = torch.tensor(draw.normal(size=(count, 2))).float()
    targets = torch.tensor(draw.normal(size=(count, 2)) * [1, 100]).float()
    task = measuring()
    answers = task.head(outputs).double().numpy()
    expected = {
        "mae": metrics.mean_absolute_error(targets, answers),
        "rmse": metrics.root_mean_squared_error(targets, answers),
        "r2": metrics.r2_score(targets.double(), answers),
    }
    assert task.measure(task.scores(outputs, targets)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("off", [0.0, 1.0])
def test_r2_of_a_constant_target_is_scikit_learns(off: float) -> None:
    task, targets = measuring(), torch.zeros(4, 2)
    exact = torch.tensor([[-1.0, 0]]).expand(4, 2) + off  # answers 0 and 0
    answers = task.head(exact)
    found = task.measure(task.scores(exact, targets))
    assert found["r2"] == pytest.approx(metrics.r2_score(targets, answers), abs=1e-6)


def test_the_worst_mistakes_come_first_and_say_what_is_wrong() -> None:
    task, targets = labeling(), torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 0]])
    outputs = torch.tensor([[1.0, -1, -1], [-1, -4, 5], [0.5, -1, -1]])
    (first, text), (second, _) = task.mistakes(task.scores(outputs, targets), 12)
    assert (first, second) == (1, 2) and text.startswith("missed: b; wrong: c (loss 3.")
    task, targets = measuring(), torch.tensor([[1.0, 2], [3, 4]])
    ((row, caption),) = task.mistakes(task.scores(torch.tensor([[0.0, 0], [9, 9]]), targets), 1)
    assert row == 1 and caption == "x 3, predicted 5; y 4, predicted 18"


def test_many_classes_get_the_weakest_of_them_and_the_most_frequent_confusions() -> None:
    task = task_of(labels("class", [f"c{i}" for i in range(120)], torch.arange(120)))
    targets = torch.arange(240) % 120
    predicted = torch.where(targets == 7, 9, targets)
    outputs = functional.one_hot(predicted, 120).float() * 9
    weakest, confusions, _ = task.tables(task.scores(outputs, targets))
    assert (len(weakest.rows), weakest.shown) == (120, 100)
    assert [*map(str, weakest.rows[0])] == ["c7", "-", "0.00 %", "2"]
    assert "lowest recall" in weakest.note
    assert confusions.rows == [("c7", "c9", 2)]
