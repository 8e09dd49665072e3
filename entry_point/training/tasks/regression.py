"""One or more numbers per image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from entry_point.config.train_config import TrainConfig
from entry_point.data.sources.source import Source
from entry_point.job.known_tasks import TASKS
from entry_point.training.tasks.losses import choose_loss, require_columns
from entry_point.training.tasks.task import Table, Task

ERRORS: dict[str, Callable[..., Tensor]] = {
    "squared_error": functional.mse_loss,
    "absolute_error": functional.l1_loss,
    "huber": functional.huber_loss,
}


class Standardized(nn.Module):
    """Scales outputs of mean 0 and standard deviation 1 to numbers in the units of the data."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        """`mean` and `std` are float `(numbers,)`. A standard deviation of 0 counts as 1."""
        super().__init__()
        self.register_buffer("mean", mean.float())
        self.register_buffer("std", std.where(std > 0, 1.0).float())

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs * self.std + self.mean

    def targets(self, numbers: Tensor) -> Tensor:
        """Returns the outputs that are scaled to `numbers`."""
        return (numbers - self.mean) / self.std


class Regression(Task):
    """Scores are the loss, then each target, then each predicted number."""

    takes = "numbers"
    blends = ("mixup",)  # no CutMix: the area of a patch is not its share of a number
    metrics = TASKS["regression"].metrics

    def __init__(self, train: Source, config: TrainConfig, device: torch.device) -> None:
        task = config.task
        self.names = list(train.classes)
        self.outputs, self._model = len(self.names), config.model
        numbers = train.labels.double()
        mean, std = numbers.mean(0), numbers.std(0, correction=0)
        self._scale = Standardized(mean, std).to(device)
        self.head: nn.Module = self._scale
        self._loss = choose_loss(task, ERRORS)
        self._error = ERRORS.get(task.loss or "", ERRORS["squared_error"])

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        require_columns(outputs, targets, self.outputs, self._model)
        return self._loss(outputs, self._scale.targets(targets))

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns scores with the training loss; with the squared error if the loss is your own."""
        losses = self._error(outputs, self._scale.targets(targets), reduction="none")
        columns = [losses.mean(1, keepdim=True), targets, self.head(outputs)]
        return torch.cat([column.double() for column in columns], 1)

    def measure(self, scores: Tensor) -> dict[str, float]:
        """Returns the metrics, each averaged over the targets."""
        mae, rmse, r2 = (float(column.mean()) for column in _errors(scores))
        return {"mae": mae, "rmse": rmse, "r2": r2}

    def tables(self, scores: Tensor) -> list[Table]:
        columns = [[float(f"{v:.4g}") for v in column.tolist()] for column in _errors(scores)]
        rows = list(zip(self.names, *columns, strict=True))
        head = ("target", "mean absolute error", "root mean square error", "R2")
        return [Table("Targets", head, rows)]

    def outcomes(self, scores: Tensor) -> dict[str, list[Any]]:
        targets, answers = (part.T.tolist() for part in scores[:, 1:].chunk(2, 1))
        if len(self.names) == 1:
            return {"label": targets[0], "answer": answers[0]}
        found = {"label": targets, "answer": answers}
        return {
            f"{what}.{name}": column
            for what, columns in found.items()
            for name, column in zip(self.names, columns, strict=True)
        }

    def mistakes(self, scores: Tensor, most: int) -> list[tuple[int, str]]:
        worst = scores[:, 0].argsort(descending=True, stable=True)[:most].tolist()
        captions = []
        for row in worst:
            targets, answers = scores[row, 1:].chunk(2)
            texts = [
                f"{name} {target:.4g}, predicted {answer:.4g}"
                for name, target, answer in zip(
                    self.names, targets.tolist(), answers.tolist(), strict=True
                )
            ]
            captions.append((row, "; ".join(texts)))
        return captions


def _errors(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns mean absolute error, root mean square error, and R2 of each target.

    As in scikit-learn, R2 of a constant target is 1 if all predictions are exact, else 0.
    """
    targets, answers = scores[:, 1:].chunk(2, 1)
    errors = answers - targets
    squares, spread = errors.square().sum(0), (targets - targets.mean(0)).square().sum(0)
    r2 = torch.where(spread > 0, 1 - squares / spread, (squares == 0).double())
    return errors.abs().mean(0), (squares / len(errors)).sqrt(), r2
