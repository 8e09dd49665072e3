"""An evaluation that three ranks share equals that of one rank."""

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from entry_point.job.devices import Devices
from entry_point.job.stop import StopRequest
from entry_point.training.evaluation import Evaluation, evaluate
from entry_point.training.input import DeviceBatch
from entry_point.training.tasks.task import Task
from tests.entry_point.training.tasks.label_sources import labels, task_of

SAMPLES, NAMES, BATCH, RANKS = 100, list("abcdefg"), 8, 3
TASKS = ("classification", "multilabel", "regression")
CPU = torch.device("cpu")


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


def evaluated(name: str, devices: Devices) -> Evaluation:
    task, outputs, targets = validation(name)
    shares = batches(outputs, targets, devices.rank, devices.world_size)
    stop = StopRequest(devices.cpu_group)
    return evaluate(nn.Identity(), task, shares, devices, samples=SAMPLES, stop=stop)


def evaluate_a_share(rank: int, folder: Path) -> None:
    """Every rank saves what it has found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    devices = Devices(CPU, None, rank, rank, RANKS, dist.group.WORLD)
    for name in TASKS:
        found = evaluated(name, devices)
        torch.save((found.metrics, found.scores), folder / f"{name}-{rank}.pt")


def test_three_ranks_find_what_one_rank_finds(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("forkserver")
    processes = [fork.Process(target=evaluate_a_share, args=(r, tmp_path)) for r in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert not any(process.exitcode for process in processes)
    for name in TASKS:
        expected = evaluated(name, Devices(CPU, None))
        for rank in range(RANKS):
            found, scores = torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True)
            assert found == pytest.approx(expected.metrics, rel=1e-6)
            torch.testing.assert_close(scores, expected.scores, rtol=1e-6, atol=1e-7)
