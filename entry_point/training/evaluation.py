"""One pass over the validation split; each sample counts once, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import nn

from entry_point.data.errors import DataError
from entry_point.training.devices import Devices
from entry_point.training.host_copy import HostCopy
from entry_point.training.input import DeviceBatch
from entry_point.training.stop import Stopped, StopRequest

WORST = 12


@dataclass(frozen=True)
class Mistake:
    """A misclassified sample."""

    index: int
    label: int
    predicted: int
    loss: float


@dataclass(frozen=True)
class Evaluation:
    """Totals over the whole validation split, the same on every rank."""

    loss: float
    accuracy: float
    pairs: torch.Tensor
    """int64 `(K, 3)`: true class, predicted class, number of samples, for every pair that occurred.
    Sparse, because a full confusion matrix of many classes would not fit."""
    worst: list[Mistake]
    """The mistakes with the largest losses."""
    damaged: int
    """Images that could not be decoded and are left out."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[DeviceBatch],
    devices: Devices,
    *,
    samples: int,
    stop: StopRequest,
) -> Evaluation:
    """Evaluate `model` (the bare module, not the DDP wrapper) on all ranks' `batches`.

    `samples` is the size of the whole split.

    Raises:
        Stopped: on every rank, if any rank was asked to stop during the evaluation.
        DataError: every image is damaged.
    """
    model.eval()
    with suppress(Stopped):  # raised again once all ranks know
        own = _predict(model, batches, devices, stop)
    model.train()
    if stop.agree_now():
        raise Stopped
    shares = devices.gather(own)
    rows = torch.cat([rows for rows, _ in shares])
    damaged = sum(damaged for _, damaged in shares)
    if len(rows) + damaged != samples:
        raise RuntimeError(f"evaluated {len(rows)} + {damaged} damaged samples of {samples}")
    if not len(rows):
        raise DataError(f"none of the {samples} validation images can be decoded; see the log")
    # Sorted by sample, so that sums do not depend on how the ranks share the split.
    return _totals(rows[rows[:, 0].argsort()], damaged)


def _predict(
    model: nn.Module, batches: Iterable[DeviceBatch], devices: Devices, stop: StopRequest
) -> tuple[torch.Tensor, int]:
    """This rank's rows `(index, label, predicted, loss)`, float64, and its damaged images."""
    indices = [torch.empty(0, dtype=torch.int64)]
    results = [torch.empty(0, 3, dtype=torch.float64, device=devices.device)]
    damaged = 0
    for batch in batches:
        if stop.requested:
            break
        damaged += batch.damaged
        if len(batch.labels) == 0:
            continue
        with devices.autocast():
            logits = model(batch.images)
        losses = nn.functional.cross_entropy(logits.float(), batch.labels, reduction="none")
        columns = [batch.labels, logits.argmax(1), losses]
        indices.append(batch.indices)
        results.append(torch.stack([column.double() for column in columns], 1))
    # One copy for the whole evaluation: each would wait for the device.
    rows = HostCopy(torch.cat(results)).wait()
    return torch.cat([torch.cat(indices).double()[:, None], rows], 1), damaged


def _totals(rows: torch.Tensor, damaged: int) -> Evaluation:
    """`rows` as in `_predict`."""
    _, label, predicted, loss = rows.T
    pairs, counts = torch.stack([label, predicted], 1).long().unique(dim=0, return_counts=True)
    wrong = rows[label != predicted]
    worst = wrong[wrong[:, 3].argsort(descending=True, stable=True)[:WORST]]
    return Evaluation(
        loss=float(loss.sum()) / len(rows),
        accuracy=float((label == predicted).sum()) / len(rows),
        pairs=torch.cat([pairs, counts[:, None]], 1),
        worst=[Mistake(int(i), int(t), int(p), x) for i, t, p, x in worst.tolist()],
        damaged=damaged,
    )
