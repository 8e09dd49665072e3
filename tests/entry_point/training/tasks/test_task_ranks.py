"""An evaluation that three ranks share equals that of one rank."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from entry_point.job.devices import Devices
from entry_point.job.stop import StopRequest
from entry_point.training.evaluation import evaluate
from entry_point.training.input import DeviceBatch
from entry_point.training.tasks.task import Task
from tests.entry_point.training.gloo_ranks import call_ranks
from tests.entry_point.training.tasks.label_sources import labels, task_of

SAMPLES, NAMES, BATCH = 100, list("abcdefg"), 8
TASKS = ("classification", "multilabel", "regression")


def validation(name: str) -> tuple[Task, Tensor, Tensor]:
    """The task, every sample's outputs, and every sample's target."""
    draw = torch.Generator().manual_seed(3)
    outputs = torch.randn(SAMPLES, len(NAMES), generator=draw)
    guess = outputs + torch.randn(SAMPLES, len(NAMES), generator=draw)
    kind, targets = {
        "classification": ("class", guess.argmax(1)),
        "multilabel": ("labels", (guess > 0.5).float()),
        "regression": ("numbers", guess),
    }[name]
    return task_of(labels(kind, NAMES, targets), f"task={name}"), outputs, targets


def batches(outputs: Tensor, targets: Tensor, rank: int, ranks: int) -> Iterator[DeviceBatch]:
    """The model's outputs in place of images; the ranks' shares differ in size."""
    for numbers in torch.arange(SAMPLES)[rank::ranks].split(BATCH):
        yield DeviceBatch(outputs[numbers], targets[numbers], numbers, 0, 0.0)


def save_what_is_found(devices: Devices, folder: Path) -> None:
    for name in TASKS:
        task, outputs, targets = validation(name)
        rank, ranks = devices.rank, devices.world_size
        shares, stop = batches(outputs, targets, rank, ranks), StopRequest(devices.cpu_group)
        found = evaluate(nn.Identity(), task, shares, devices, samples=SAMPLES, stop=stop)
        torch.save((found.metrics, found.scores), folder / f"{name}-{rank}-of-{ranks}")


def test_three_ranks_find_what_one_rank_finds(tmp_path: Path) -> None:
    for ranks in (1, 3):
        call_ranks(save_what_is_found, ranks, tmp_path)
    for name in TASKS:
        expected, expected_scores = torch.load(tmp_path / f"{name}-0-of-1", weights_only=True)
        for rank in range(3):
            found, scores = torch.load(tmp_path / f"{name}-{rank}-of-3", weights_only=True)
            assert found == pytest.approx(expected, rel=1e-6)
            torch.testing.assert_close(scores, expected_scores, rtol=1e-6, atol=1e-7)
