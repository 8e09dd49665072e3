"""One pass over the validation split: every sample counted once, on however many ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from entry_point.data import Loader
from entry_point.training.device_batches import Prepare, device_batches
from entry_point.training.devices import Devices
from entry_point.training.stop import StopRequest

WORST = 12


@dataclass(frozen=True)
class Mistake:
    """A sample the model is most wrong about."""

    index: int
    label: int
    predicted: int
    loss: float


@dataclass(frozen=True)
class Evaluation:
    """Totals over the whole validation split, the same on every rank."""

    loss: float
    accuracy: float
    confusion: torch.Tensor
    """int64 `(classes, classes)`, row the true class, column the predicted one."""
    worst: list[Mistake]
    damaged: int
    """Images of the split that could not be decoded and are left out."""


class Stopped(Exception):
    """A stop was asked for; the evaluation's partial totals are worth nothing."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Loader,
    prepare: Prepare,
    devices: Devices,
    *,
    classes: int,
    samples: int,
    channels_last: bool,
    stop: StopRequest,
) -> Evaluation:
    """Evaluate `model` (the bare module, not the DDP wrapper) over all ranks' shares.

    Raises:
        Stopped: on every rank, if any rank was asked to stop on the way.
    """
    model.eval()
    # float64 on the CPU: sums that do not depend on how the ranks cut the split.
    loss_sum = torch.zeros((), dtype=torch.float64)
    confusion = torch.zeros(classes * classes, dtype=torch.int64)
    seen: list[torch.Tensor] = []
    damaged = 0
    for batch in device_batches(loader.epoch(0), devices.device, prepare, channels_last):
        if stop.here:
            break
        damaged += batch.damaged
        if len(batch.labels) == 0:
            continue
        with devices.autocast():
            logits = model(batch.images)
        losses = nn.functional.cross_entropy(logits.float(), batch.labels, reduction="none")
        predicted = logits.argmax(1)
        loss_sum += losses.double().sum().cpu()
        pairs = (batch.labels * classes + predicted).cpu()
        confusion += torch.bincount(pairs, minlength=classes * classes)
        wrong = (predicted != batch.labels).cpu()
        rows = [batch.indices, batch.labels.cpu(), predicted.cpu(), losses.double().cpu()]
        seen.append(_worst(torch.stack([row.double() for row in rows], 1)[wrong]))
    model.train()
    if stop.agree_now():
        raise Stopped
    own = torch.cat([loss_sum.view(1), torch.tensor([damaged]).double(), confusion.double()])
    totals = devices.sum(own.to(_reduction_device(devices))).cpu()
    counts = totals[2:].round().to(torch.int64).view(classes, classes)
    damaged, evaluated = int(totals[1]), int(counts.sum())
    if evaluated + damaged != samples:
        raise RuntimeError(f"evaluated {evaluated} + {damaged} damaged samples of {samples}")
    return Evaluation(
        loss=float(totals[0]) / max(1, evaluated),
        accuracy=float(counts.trace()) / max(1, evaluated),
        damaged=damaged,
        confusion=counts,
        worst=_gather_worst(torch.cat(seen) if seen else torch.empty(0, 4), devices),
    )


def _worst(rows: torch.Tensor) -> torch.Tensor:
    """The WORST rows `(index, label, predicted, loss)` of highest loss."""
    return rows[rows[:, 3].argsort(descending=True, stable=True)[:WORST]]


def _gather_worst(rows: torch.Tensor, devices: Devices) -> list[Mistake]:
    gathered: list[torch.Tensor] = [rows]
    if devices.world_size > 1:
        shares: list[torch.Tensor | None] = [None] * devices.world_size
        dist.all_gather_object(shares, _worst(rows))
        gathered = [share for share in shares if share is not None]
    return [
        Mistake(int(index), int(label), int(predicted), loss)
        for index, label, predicted, loss in _worst(torch.cat(gathered)).tolist()
    ]


def _reduction_device(devices: Devices) -> torch.device:
    """nccl reduces on the GPU, gloo on the CPU."""
    return devices.device if devices.world_size > 1 else torch.device("cpu")
