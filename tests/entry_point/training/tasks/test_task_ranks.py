"""An evaluation shared by three ranks equals scikit-learn's, and that of one rank."""

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from sklearn import metrics
from torch import Tensor, nn

from entry_point.job.devices import Devices
from entry_point.job.stop import StopRequest
from entry_point.training.evaluation import Evaluation, evaluate
from entry_point.training.input import DeviceBatch
from entry_point.training.tasks.task import Task
from tests.entry_point.training.tasks.label_sources import labels, task_of

SAMPLES, NAMES, BATCH = 100, list("abcdefg"), 8
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


def evaluated(name: str, rank: int, ranks: int) -> Evaluation:
    task, outputs, targets = validation(name)
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    devices = Devices(CPU, None, rank, rank, ranks, group)
    shares = batches(outputs, targets, rank, ranks)
    stop = StopRequest(devices.cpu_group)
    return evaluate(nn.Identity(), task, shares, devices, samples=SAMPLES, stop=stop)


def evaluate_a_share(rank: int, ranks: int, folder: Path) -> None:
    """Every rank saves what it has found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=ranks)
    for name in EXPECTED:
        found = evaluated(name, rank, ranks)
        torch.save((found.metrics, found.scores), folder / f"{name}-{rank}.pt")


def classification(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    probabilities = outputs.double().softmax(1)
    predicted = probabilities.argmax(1)
    return {
        "loss": metrics.log_loss(targets, probabilities),
        "accuracy": metrics.accuracy_score(targets, predicted),
        "balanced_accuracy": metrics.balanced_accuracy_score(targets, predicted),
        "top5_accuracy": metrics.top_k_accuracy_score(targets, probabilities, k=5),
    }


def multilabel(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    probabilities = outputs.sigmoid()
    found = probabilities >= 0.5
    return {
        "loss": metrics.log_loss(targets.ravel(), probabilities.ravel()),
        "map": metrics.average_precision_score(targets, probabilities),
        "f1_micro": metrics.f1_score(targets, found, average="micro"),
        "f1_macro": metrics.f1_score(targets, found, average="macro"),
    }


def regression(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    std, mean = targets.std(0, correction=0), targets.mean(0)
    answers = outputs * std + mean
    return {
        "loss": metrics.mean_squared_error((targets - mean) / std, outputs),
        "mae": metrics.mean_absolute_error(targets, answers),
        "rmse": metrics.root_mean_squared_error(targets, answers),
        "r2": metrics.r2_score(targets, answers),
    }


EXPECTED = {
    "classification": classification,
    "multilabel": multilabel,
    "regression": regression,
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Number of ranks -> the folder with what their processes have found."""
    fork = multiprocessing.get_context("forkserver")
    folders = {ranks: tmp_path_factory.mktemp("ranks") for ranks in (1, 3)}
    for ranks, folder in folders.items():
        arguments = [(rank, ranks, folder) for rank in range(ranks)]
        processes = [fork.Process(target=evaluate_a_share, args=each) for each in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=120)
        assert not any(process.exitcode for process in processes)
    return folders


@pytest.mark.parametrize("name", EXPECTED)
def test_three_ranks_find_what_one_rank_and_scikit_learn_find(
    name: str, found: dict[int, Path]
) -> None:
    values, scores = torch.load(found[1] / f"{name}-0.pt", weights_only=True)
    for rank in range(3):
        same, same_scores = torch.load(found[3] / f"{name}-{rank}.pt", weights_only=True)
        assert same == pytest.approx(values, rel=1e-6)
        torch.testing.assert_close(same_scores, scores, rtol=1e-6, atol=1e-7)
    _, outputs, targets = validation(name)
    assert values == pytest.approx(EXPECTED[name](outputs, targets), rel=1e-5)
