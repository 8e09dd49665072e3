"""One pass over the validation split; each sample counts once, whatever the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import nn

from entry_point.config.config_errors import ConfigError
from entry_point.config.resolve import full_name
from entry_point.data.errors import DataError
from entry_point.job.devices import Devices, HostCopy
from entry_point.job.stop import Stopped, StopRequest
from entry_point.training.input import DeviceBatch
from entry_point.training.model_checks import explaining_shapes
from entry_point.training.tasks.task import Task


@dataclass(frozen=True)
class Evaluation:
    """The results of the whole validation split, the same on every rank."""

    loss: float
    metrics: dict[str, float]
    """The task's metrics by name, and `loss`; without values that are not finite."""
    indices: torch.Tensor
    """int64 `(N,)`: the samples' numbers in their source, ascending."""
    scores: torch.Tensor
    """float64 `(N, columns)`: the task's scores of these samples."""
    damaged: int
    """Number of images that could not be decoded and are left out."""

    def record(self) -> dict[str, float | int]:
        """Returns the values that are logged: `val_loss`, `val_accuracy` and so on."""
        values: dict[str, float | int] = {
            f"val_{name}": float(f"{value:.7g}") for name, value in self.metrics.items()
        }
        return {**values, "val_damaged": self.damaged} if self.damaged else values


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    batches: Iterable[DeviceBatch],
    devices: Devices,
    *,
    samples: int,
    stop: StopRequest,
) -> Evaluation:
    """Evaluate the model (the bare module, not the DDP wrapper) on all ranks' `batches`.

    `samples` is the size of the whole split.

    Raises:
        Stopped: on every rank, if any rank was asked to stop during the evaluation.
        DataError: every image is damaged.
    """
    is_trained = model.training
    model.eval()
    with suppress(Stopped):  # raised below, on every rank
        own = _score(model, task, batches, devices, stop)
    model.train(is_trained)
    if stop.agree_now():
        raise Stopped
    shares = devices.gather(own)
    # If the split is small, a rank may get no samples; its rows then have no columns.
    rows = torch.cat([rows for rows, _ in shares if len(rows)] or [shares[0][0]])
    damaged = sum(damaged for _, damaged in shares)
    if len(rows) + damaged != samples:
        raise RuntimeError(f"evaluated {len(rows)} + {damaged} damaged samples of {samples}")
    if not len(rows):
        raise DataError(f"no image can be decoded, of {samples}; see the log")
    # Sorted by sample, so that sums do not depend on how the ranks share the split.
    rows = rows[rows[:, 0].argsort()]
    indices, scores = rows[:, 0].long(), rows[:, 1:]
    metrics = {"loss": float(scores[:, 0].sum()) / len(scores), **task.measure(scores)}
    # Your own task may return NumPy or torch scalars, which torch.load(weights_only=True) refuses.
    numbers = {name: float(value) for name, value in metrics.items()}
    finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
    return Evaluation(numbers["loss"], finite, indices, scores, damaged)


def _score(
    model: nn.Module,
    task: Task,
    batches: Iterable[DeviceBatch],
    devices: Devices,
    stop: StopRequest,
) -> tuple[torch.Tensor, int]:
    """Returns this rank's rows, and the number of its damaged images.

    A row is float64: the sample's number, then its scores.
    """
    indices: list[torch.Tensor] = []
    scores: list[torch.Tensor] = []
    damaged = 0
    for batch in batches:
        if stop.requested:
            break
        damaged += batch.damaged
        if len(batch.labels) == 0:
            continue
        with devices.autocast(), explaining_shapes(model, batch.images):
            outputs = model(batch.images)
        indices.append(batch.indices)
        scores.append(task.scores(outputs.float(), batch.labels).double())
        if (shape := tuple(scores[-1].shape))[:1] != batch.indices.shape or len(shape) != 2:
            message = f"scores() must return a row for each of {len(batch.indices)} samples, the "
            message += f"loss first, not a tensor {shape}"
            raise ConfigError("task.name", full_name(task), message)
    if not scores:
        return torch.empty(0, 0, dtype=torch.float64), damaged
    # One copy for the whole evaluation, as each copy waits for the device.
    rows = HostCopy(torch.cat(scores)).wait()
    return torch.cat([torch.cat(indices).double()[:, None], rows], 1), damaged
