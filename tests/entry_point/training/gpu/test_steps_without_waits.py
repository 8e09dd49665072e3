"""No step and no evaluated batch waits for the GPU. Tensors without values show it on any machine;
test_gpu.py shows it on a GPU."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from entry_point.config.data_config import DataConfig
from entry_point.config.train_config import load_train_config
from entry_point.data.batch import Batch
from entry_point.data.sources.source import Source
from entry_point.job.devices import Devices
from entry_point.job.run_folder import RunFolder
from entry_point.training.input import _copy_stream, device_batches
from entry_point.training.learner import Learner
from entry_point.training.models import Normalize
from tests.entry_point.training.gpu.fake_gpu import (
    CUDA,
    FakeGpu,
    FakeStreams,
    fake_gpu,
)
from tests.entry_point.training.gpu.simulated_gpu import SimulatedGpu
from tests.entry_point.training.gpu.steady_steps import SteadyTrainer, steady_steps
from tests.entry_point.training.tasks.label_sources import classes, labels, task_of
from tests.entry_point.training.training_jobs import TINY

SIX_CLASSES = classes(6)
LABELS = labels("labels", ["a", "b", "c"], torch.tensor([[1.0, 0, 1], [0, 1, 0], [1, 1, 1]]))
NUMBERS = labels("numbers", ["a", "b"], torch.tensor([[1.0, -3], [2, 5], [4, 4]]))
BLENDED = ["optim.mixup_alpha=0.2", "optim.cutmix_alpha=0.2"]
VIEWS = ["task.name=project.simclr.SimClr", "model.name=project.simclr.encoder", "data.views=2"]


def step(source: Source, gpu: FakeGpu, *overrides: str) -> None:
    """Four steps and an evaluated batch; `gpu.waits` has only what they do after the first step,
    which builds your own model once more."""
    config, _ = load_train_config(["model.name=tests.own_models.tiny_net_with_state", *overrides])
    devices = Devices(CUDA, None)
    task = task_of(source, *overrides, device=CUDA)
    learner = Learner(config, devices, task, steps_per_epoch=10, channels=Path())
    normalize = Normalize(*config.data.normalization).to(CUDA)
    rows = [row for row in (0, 1, 2, 0) for _ in range(config.data.views)]
    targets = source.labels[rows].to(CUDA)
    pixels = torch.zeros((len(targets), 3, 32, 32), dtype=torch.uint8, device=CUDA)
    gpu.model = learner.model
    for number in range(4):
        if number == 1:
            gpu.waits.clear()
        images = normalize(pixels)
        loss = learner.loss(images, targets, number)
        learner.update()
    assert loss.device == CUDA and loss.shape == ()
    learner.measure_statistics([images], first_step=2)
    scores = task.scores(learner.exported.eval()(images[:4]), targets[:4])
    assert scores.device == CUDA and scores.dtype == torch.float64 and len(scores) == 4


@pytest.mark.parametrize(
    ("source", "overrides"),
    [
        (SIX_CLASSES, ["optim.ema_decay=0.9", "optim.clip_norm=1", "optim.accumulate=2", *BLENDED]),
        (SIX_CLASSES, ["task.loss=focal", "task.class_weights=auto", "task.label_smoothing=0.1"]),
        (SIX_CLASSES, ["optim.name=adamw", "optim.ema_decay=0.9"]),
        (SIX_CLASSES, ["optim.name=rmsprop", "optim.clip_norm=1"]),
        (SIX_CLASSES, ["task.name=project.tasks.OrderedClasses"]),
        (SIX_CLASSES, ["augment.name=project.augmentations.Noise", *BLENDED]),
        (SIX_CLASSES, [*VIEWS, "model.kwargs.backbone=resnet18"]),
        (SIX_CLASSES, ["augment.name=project.stall.Stall"]),
        (LABELS, ["task=multilabel", "task.class_weights=auto"]),
        (LABELS, ["task=multilabel", "task.loss=focal"]),
        (NUMBERS, ["task=regression"]),
        (NUMBERS, ["task=regression", "task.loss=huber"]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, list) else "",
)
def test_no_step_waits_for_the_gpu(
    source: Source, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_gpu(monkeypatch) as gpu:
        step(source, gpu, *overrides)
    assert gpu.waits == []


def test_batches_cross_to_the_gpu_beside_its_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    SimulatedGpu().install(monkeypatch)
    streams = FakeStreams()
    streams.install(monkeypatch)
    numbers = torch.arange(4)
    pixels = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    made = [Batch(pixels, numbers, numbers)] * 4
    with fake_gpu(monkeypatch) as gpu:
        data = DataConfig()
        normalize = Normalize(*data.normalization, torch.bfloat16).to(CUDA)
        gpu.waits.clear()
        _copy_stream.cache_clear()
        for batch in device_batches(made, CUDA, normalize):
            handed = [batch.images, batch.labels]
            assert [tensor.device for tensor in handed] == [CUDA] * len(handed)
            assert batch.images.dtype == torch.bfloat16 and batch.indices is numbers
            assert batch.images.is_contiguous(memory_format=torch.channels_last)
            assert [streams.users(tensor) for tensor in handed] == [["compute"]] * len(handed)
        _copy_stream.cache_clear()
    assert streams.compute.awaited == ["other"] * 4
    assert gpu.waits == []


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def sends_weights(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
    return (outputs * torch.ones(6).to(outputs.device)).mean()


def computes_on_the_cpu(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
    outputs.cpu()
    return outputs.mean()


@pytest.mark.parametrize("loss", [sends_weights, computes_on_the_cpu])
def test_a_loss_that_copies_is_noted(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gpu(monkeypatch) as gpu:
        step(SIX_CLASSES, gpu, f"task.loss={__name__}.{loss.__name__}")
    assert gpu.waits


def test_only_steps_before_the_steady_part_and_at_log_lines_may_wait(
    tmp_path: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[tuple[int, bool]] = []

    def note(trainer: SteadyTrainer, strict: bool) -> None:
        modes.append((trainer.progress.global_step, strict))

    monkeypatch.setattr(SteadyTrainer, "_set_mode", note)
    overrides = [f"data.root={photo_folder}", "trainer.batch_size=8", "trainer.log_every_steps=5"]
    config, _ = load_train_config([*TINY, *overrides])
    devices = Devices(torch.device("cpu"), None)
    # The last three of six, in two epochs.
    assert steady_steps(config, RunFolder(tmp_path), devices) == 2 * 3
    # (steps taken, strict): logs after steps 5, 6, 10 and 12.
    strict = [step for step, mode in modes if mode]
    relaxed = [step for step, mode in modes if not mode]
    assert strict == [3, 4, 5, 9, 10, 11]
    assert {5, 6, 10, 12} <= set(relaxed)
