"""The evaluation, losses that are not finite, and requests to stop."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import OptimConfig, TrainConfig
from entry_point.data.batch import Batch, Damage
from entry_point.data.errors import DataError
from entry_point.data.sources.source import Source
from entry_point.job.devices import Devices
from entry_point.job.known_tasks import LOSS
from entry_point.job.stop import StopRequest
from entry_point.training.evaluation import Evaluation, evaluate
from entry_point.training.input import DeviceBatch, device_batches
from entry_point.training.models import Normalize
from entry_point.training.progress import Progress
from entry_point.training.results.step_log import DivergedError, StepLog
from entry_point.training.results.times import Moment
from entry_point.training.tasks.classification import Classification
from entry_point.training.tasks.task import Task
from tests.entry_point.training.gloo_ranks import call_ranks
from tests.entry_point.training.tasks.label_sources import classes, labels, task_of

CPU = Devices(torch.device("cpu"), None)


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    request = StopRequest()
    request.handle_signals()
    yield request
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("stop")
def test_a_second_ctrl_c_stops_at_once() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def add_loss(log: StepLog, loss: float, *, epoch: int, step: int) -> None:
    """Count a step of a run with 100 steps per epoch."""
    images, labels = torch.zeros(2, 3, 2, 2), torch.zeros(2, dtype=torch.int64)
    batch = DeviceBatch(images, labels, labels, damaged=0, wait=0.0)
    log.add(torch.tensor(loss), batch, Moment(CPU.device), Progress(100, LOSS, epoch, step))


LOWER = "loss=inf in step 7 of epoch 3: lower optim.lr=0.03, or "
RESTART = "; use another name to restart from scratch"


@pytest.mark.parametrize(
    ("clip", "kept", "message"),
    [
        (None, [], LOWER + "clip gradients with optim.clip_norm=1"),
        (
            *(1.0, ["step-000000014.pt", "best.pt"]),
            f"{LOWER}optim.clip_norm=1{RESTART}, or from model.weights={{folder}}/best.pt",
        ),
    ],
)
def test_the_error_for_an_infinite_loss_names_what_to_change(
    clip: float | None, kept: list[str], message: str, tmp_path: Path
) -> None:
    for name in kept:
        (tmp_path / name).touch()
    config = TrainConfig(optim=OptimConfig(clip_norm=clip))
    log = StepLog(config, CPU, tmp_path)
    add_loss(log, 1.0, epoch=0, step=0)
    with pytest.raises(DivergedError) as error:
        add_loss(log, float("inf"), epoch=3, step=7)
    assert str(error.value) == message.format(folder=tmp_path)


def test_before_the_first_update_the_rate_is_not_to_blame(tmp_path: Path) -> None:
    log = StepLog(TrainConfig(), CPU, tmp_path)
    with pytest.raises(DivergedError, match=r"loss=nan .* first update: check the model, "):
        add_loss(log, float("nan"), epoch=0, step=0)


class _FirstPixel(nn.Module):
    """Predicts the class that the first pixel holds."""

    def __init__(self) -> None:
        super().__init__()
        self.modes: list[bool] = []
        """`training` at each call."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.modes.append(self.training)
        return nn.functional.one_hot(images[:, 0, 0, 0].round().long(), 3).float() * 10


def two_batches_and_a_damaged_image() -> Iterator[Batch]:
    for step, pixels in enumerate(([0, 1], [2, 1], [])):
        images = torch.zeros(len(pixels), 3, 2, 2, dtype=torch.uint8)
        images[:, 0, 0, 0] = torch.tensor(pixels, dtype=torch.uint8)
        labels = torch.tensor([0, 1][: len(pixels)], dtype=torch.int64)
        damage = () if pixels else (Damage("broken.jpg", "truncated"),)
        yield Batch(images, labels, torch.arange(len(labels)) + 2 * step, damage)


def test_evaluation_in_eval_mode_counts_every_sample_and_finds_the_worst_mistake(
    stop: StopRequest,
) -> None:
    identity, task = Normalize([0, 0, 0], [1 / 255] * 3), task_of(classes(3))
    for training in (True, False):
        batches = device_batches(two_batches_and_a_damaged_image(), CPU.device, identity)
        model = _FirstPixel().train(training)
        result = evaluate(model, task, batches, CPU, samples=5, stop=stop)
        assert model.modes == [False, False] and model.training is training
    assert result.indices.tolist() == [0, 1, 2, 3]
    assert (result.metrics["accuracy"], result.damaged) == (0.75, 1)
    assert result.record()["val_accuracy"] == 0.75 and result.record()["val_damaged"] == 1
    ((row, caption),) = task.mistakes(result.scores, 12)
    assert result.indices[row] == 2 and caption == "a, predicted c (loss 10.00)"


def test_evaluation_in_which_every_image_is_damaged_is_an_error(stop: StopRequest) -> None:
    *_, damaged = two_batches_and_a_damaged_image()
    identity = Normalize([0, 0, 0], [1 / 255] * 3)
    batches = device_batches([damaged, damaged], CPU.device, identity)
    with pytest.raises(DataError, match="no image can be decoded, of 2"):
        evaluate(_FirstPixel(), task_of(classes(3)), batches, CPU, samples=2, stop=stop)


class _OwnNumbers(Classification):
    """Measures what it is told to."""

    value: Any = None

    def measure(self, scores: torch.Tensor) -> dict[str, float]:  # noqa: ARG002
        return {"own": self.value}


class _TwoHeads(Classification):
    """Has more outputs than names."""

    def __init__(self, train: Source, config: TrainConfig, device: torch.device) -> None:
        super().__init__(train, config, device)
        self.names, self.outputs = self.names[:2], 3


def evaluated(task: Task, stop: StopRequest) -> Evaluation:
    identity = Normalize([0, 0, 0], [1 / 255] * 3)
    batches = device_batches(two_batches_and_a_damaged_image(), CPU.device, identity)
    return evaluate(_FirstPixel(), task, batches, CPU, samples=5, stop=stop)


@pytest.mark.parametrize("value", [np.float64(0.5), np.float32(0.5), torch.tensor(0.5)])
def test_a_metric_of_your_own_may_be_numpys_or_a_tensor(value: Any, stop: StopRequest) -> None:
    """A checkpoint keeps the best one, and evaluation.json has all."""
    task = task_of(classes(3), f"task.name={__name__}._OwnNumbers")
    cast(_OwnNumbers, task).value = value
    found = evaluated(task, stop).metrics["own"]
    assert (found, type(found)) == (0.5, float)


def test_a_head_of_your_own_that_answers_for_other_names_is_refused(stop: StopRequest) -> None:
    """Else the accuracy would be of other columns."""
    name = f"{__name__}._TwoHeads"
    line = f"task.name={name}: head must answer (N, 2), a probability for each name, not (N, 3)"
    with pytest.raises(ConfigError, match=re.escape(line)):
        evaluated(task_of(classes(3), f"task.name={name}"), stop)


SAMPLES, NAMES, BATCH = 100, list("abcdefg"), 8
TASKS = ("classification", "multilabel", "regression")


class _LossesAlone(Classification):
    """Scores without the dimension of columns."""

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.losses(outputs, targets)


def test_scores_of_your_own_that_are_no_rows_are_refused(stop: StopRequest) -> None:
    name = f"{__name__}._LossesAlone"
    with pytest.raises(ConfigError, match=re.escape(f"task.name={name}: scores() must return a")):
        evaluated(task_of(classes(3), f"task.name={name}"), stop)


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
