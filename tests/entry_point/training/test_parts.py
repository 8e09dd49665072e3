"""The parts of the trainer, each for itself."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torchvision.transforms.v2 import functional

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig
from entry_point.config.train_config import ModelConfig, OptimConfig, load_train_config
from entry_point.contract.run_folder import RunFolder
from entry_point.data.batch import Batch, Damage
from entry_point.training.device_batches import device_batches
from entry_point.training.device_transform import DeviceTransform, Normalize
from entry_point.training.devices import Devices
from entry_point.training.evaluation import Evaluation, evaluate
from entry_point.training.learner import Learner
from entry_point.training.loss_guard import LossGuard, NonFiniteLossError
from entry_point.training.measure.totals import Totals
from entry_point.training.model import build_model
from entry_point.training.optim import build_optimizer, rate_factor
from entry_point.training.results.summary import summary_lines
from entry_point.training.stop import StopRequest
from tests.own_models import tiny_net

CPU = Devices(torch.device("cpu"), None)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def learner(*overrides: str) -> Learner:
    config, _ = load_train_config(["model.name=tests.own_models.tiny_net", *overrides])
    return Learner(config, CPU, num_classes=4, steps_per_epoch=10, channels=Path())


def batch(count: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 3, 16, 16, generator=generator)
    return images, torch.randint(0, 4, (count,), generator=generator)


def drawing_net(num_classes: int) -> nn.Module:
    """Draws from all generators that a model may use."""

    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny_net(num_classes)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            drawn = random.random() + np.random.random() + float(torch.rand(()))
            logits: torch.Tensor = self.net(images) * drawn
            return logits

    return Drawing()


def gradients(some: Learner) -> list[torch.Tensor]:
    return [p.grad.clone() for p in some.model.parameters() if p.grad is not None]


def test_normalisation_is_torchvisions() -> None:
    images = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    expected = functional.normalize(functional.to_dtype(images, scale=True), MEAN, STD)
    torch.testing.assert_close(Normalize(MEAN, STD)(images), expected)


def test_batches_keep_the_memory_format_asked_for() -> None:
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    made = Batch(images, torch.zeros(2, dtype=torch.int64), torch.arange(2))
    (got,) = device_batches(
        [made], CPU.device, DeviceTransform(DataConfig(), 0), channels_last=True
    )
    assert got.images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("overrides", "golden"),
    [
        ((), [1.36254, 1.35493, 1.34432, 1.3314, 1.31681, 1.30095]),
        (
            ("optim=adamw", "optim.lr=0.01"),
            [1.36254, 1.30261, 1.24491, 1.19117, 1.14187, 1.09704],
        ),
    ],
)
def test_golden_losses(overrides: tuple[str, ...], golden: list[float]) -> None:
    some = learner("optim.warmup_epochs=0", *overrides)
    losses = []
    for step in range(len(golden)):
        losses.append(float(some.loss(*batch(), step)))
        some.update()
    assert losses == pytest.approx(golden, abs=1e-4)


@pytest.mark.parametrize("pieces", [2, 4])
def test_a_batch_in_pieces_has_the_gradients_of_the_whole(pieces: int) -> None:
    whole, cut = learner(), learner(f"optim.accumulate={pieces}")
    assert whole.loss(*batch(), 0) == pytest.approx(float(cut.loss(*batch(), 0)), abs=1e-6)
    for expected, got in zip(gradients(whole), gradients(cut), strict=True):
        torch.testing.assert_close(got, expected)


def test_gradients_are_clipped_to_the_norm_asked_for() -> None:
    clipped = learner("optim.clip_norm=0.01")
    clipped.loss(*batch(), 0)
    clipped.update()
    norm = torch.stack([g.norm() for g in gradients(clipped)]).norm()
    assert float(norm) == pytest.approx(0.01, rel=1e-3)


def test_the_average_follows_the_weights_and_is_what_counts() -> None:
    averaged = learner("optim.ema_decay=0.5", "optim.warmup_epochs=0")
    history = []
    for step in range(3):
        averaged.loss(*batch(), step)
        averaged.update()
        history.append(averaged.model[6].bias.detach().clone())  # type: ignore[index]
    expected = 0.5 * (0.5 * history[0] + 0.5 * history[1]) + 0.5 * history[2]
    torch.testing.assert_close(averaged.evaluated[6].bias, expected)  # type: ignore[index]


@pytest.mark.parametrize("mix", ["optim.mixup_alpha=0.4", "optim.cutmix_alpha=1"])
def test_a_steps_mixture_depends_on_its_number_alone(mix: str) -> None:
    first, second = learner(mix), learner(mix)
    first.loss(*batch(), 0)
    assert float(first.loss(*batch(), 5)) == float(second.loss(*batch(), 5))
    assert float(first.loss(*batch(), 6)) != float(second.loss(*batch(), 5))


def test_all_generators_of_a_step_depend_on_its_number_alone() -> None:
    model = "model.name=tests.entry_point.training.test_parts.drawing_net"
    first, second = learner(model), learner(model)
    first.loss(*batch(), 0)
    assert float(first.loss(*batch(), 5)) == float(second.loss(*batch(), 5))


def test_bf16_computes_in_bf16_and_keeps_the_weights_in_fp32() -> None:
    config, _ = load_train_config(["model.name=tests.own_models.tiny_net"])
    half = Learner(
        config,
        Devices(CPU.device, torch.bfloat16),
        num_classes=4,
        steps_per_epoch=10,
        channels=Path(),
    )
    exact, rounded = (float(some.loss(*batch(), 0)) for some in (learner(), half))
    assert rounded == pytest.approx(exact, rel=1e-2)
    assert rounded != exact
    assert all(gradient.dtype is torch.float32 for gradient in gradients(half))


def test_batch_statistics_over_ranks_are_refused_where_torch_has_none() -> None:
    config, _ = load_train_config(["model.sync_batchnorm=true"])
    two = Devices(CPU.device, None, world_size=2)
    with pytest.raises(ConfigError, match=r"model\.sync_batchnorm=true"):
        Learner(config, two, num_classes=4, steps_per_epoch=10, channels=Path())


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_biases_and_normalisation_do_not_decay(name: str) -> None:
    model = torchvision.models.resnet18(num_classes=3)
    config = OptimConfig(name=name, weight_decay=0.1)
    decay, keep = build_optimizer(config, model).param_groups
    assert {p.dim() for p in decay["params"]} == {2, 4}
    assert {p.dim() for p in keep["params"]} == {1}
    assert (decay["weight_decay"], keep["weight_decay"]) == (0.1, 0.0)
    assert len(decay["params"]) + len(keep["params"]) == len(list(model.parameters()))


def test_the_rate_warms_up_then_follows_the_cosine_to_zero() -> None:
    factor = rate_factor(OptimConfig(warmup_epochs=1), steps_per_epoch=10, epochs=5)
    assert [factor(step) for step in (0, 4, 9, 10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert factor(30) == pytest.approx(0.5)
    assert factor(50) == pytest.approx(0.0)


def test_the_rate_falls_in_steps() -> None:
    config = OptimConfig(schedule="step", step_epochs=2, step_factor=0.1, warmup_epochs=0)
    factor = rate_factor(config, steps_per_epoch=10, epochs=6)
    assert [factor(step) for step in (0, 19, 20, 40)] == pytest.approx([1, 1, 0.1, 0.01])


def test_weights_of_another_head_are_taken_but_for_the_head(tmp_path: Path) -> None:
    source = torchvision.models.resnet18(num_classes=7)
    channel = tmp_path / "weights"
    channel.mkdir()
    torch.save(source.state_dict(), channel / "pretrained.pth")
    model = build_model(ModelConfig(weights="weights"), 3, tmp_path)
    ours, theirs = model.state_dict(), source.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours if not key.startswith("fc."))
    assert ours["fc.weight"].shape == (3, 512)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ModelConfig(name="resnet51"), "did you mean resnet50"),
        (ModelConfig(name="tests.own_models.no_such"), "no_such"),
        (ModelConfig(name="os.path.join.nothing"), "model.name=os.path.join.nothing"),
        (ModelConfig(weights="/no/such.pt"), "model.weights=/no/such.pt"),
    ],
)
def test_a_model_that_cannot_be_built_is_named(config: ModelConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(config, 3)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    torch.save(torchvision.models.resnet50(num_classes=3).state_dict(), tmp_path / "other.pt")
    with pytest.raises(ConfigError, match=r"model\.weights=.*other\.pt"):
        build_model(ModelConfig(weights=str(tmp_path / "other.pt")), 3)


def test_a_loss_that_is_no_number_names_its_step_and_samples() -> None:
    guard = LossGuard()
    guard.watch(torch.tensor(1.0), 0, 0, torch.arange(2))
    with pytest.raises(NonFiniteLossError, match="step 7 of epoch 3") as caught:
        guard.watch(torch.tensor(float("inf")), 3, 7, torch.tensor([4, 9]))
    assert caught.value.indices.tolist() == [4, 9]


class _Known(nn.Module):
    """Reads the class off the first pixel."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(images[:, 0, 0, 0].round().long(), 3).float() * 10


class _FewBatches:
    steps_per_epoch = 3

    def epoch(self, _epoch: int, _start_step: int = 0) -> Iterator[Batch]:
        pixel = [[0, 1], [2, 1], []]
        damage = [(), (), (Damage("broken.jpg", "truncated"),)]
        for step in range(3):
            images = torch.zeros(len(pixel[step]), 3, 2, 2, dtype=torch.uint8)
            images[:, 0, 0, 0] = torch.tensor(pixel[step], dtype=torch.uint8)
            labels = torch.tensor([0, 1] if step == 0 else [0, 1][: len(pixel[step])])
            yield Batch(images, labels.long(), torch.arange(len(labels)) + 2 * step, damage[step])

    def close(self) -> None: ...


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield StopRequest()
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_a_stop_is_heard_by_signal(stop: StopRequest) -> None:
    assert stop.agreed(checkpoint=True) == (False, True)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.agreed(checkpoint=False) == (True, False)


def test_a_second_ctrl_c_means_at_once(stop: StopRequest) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.here
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_evaluation_counts_every_sample_and_finds_the_worst(stop: StopRequest) -> None:
    identity = DeviceTransform(DataConfig(mean=[0, 0, 0], std=[1 / 255] * 3), 0)
    result: Evaluation = evaluate(
        _Known(),
        _FewBatches(),
        identity,
        CPU,
        samples=5,
        channels_last=False,
        stop=stop,
    )
    assert result.pairs.tolist() == [[0, 0, 1], [0, 2, 1], [1, 1, 2]]
    assert (result.accuracy, result.damaged) == (0.75, 1)
    assert [(m.index, m.label, m.predicted) for m in result.worst] == [(2, 0, 2)]


def test_paths_are_shown_relative_only_where_they_lie_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for root, shown in ((tmp_path / "runs" / "a", "runs/a"), (tmp_path.parent / "ml", None)):
        run = RunFolder(root)
        run.create()
        (run.model / "model.pt").touch()
        lines = summary_lines(Totals([], 16), 1.0, 0.5, 0.5, run)
        (line,) = (line for line in lines if line.startswith("  model "))
        assert line.split()[1] == f"{shown or root}/model/model.pt"
