"""The moving average of the weights: torch's values, in few calls that never read the device."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

from entry_point.config.train_config import load_train_config
from entry_point.job.devices import Devices
from entry_point.training.averaged_weights import AveragedWeights
from entry_point.training.learner import Learner
from tests.entry_point.training.tasks.label_sources import classes, task_of
from tests.own_models import tiny_net_with_state


class Calls(TorchDispatchMode):
    """The names of the operators called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def change(model: nn.Module) -> None:
    """As a step does: other weights, and other statistics of the batches."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    model(torch.randn(4, 3, 8, 8))


def ramp(decay: float) -> Any:
    """torch's update of averages, with the decay of the ramp."""

    def update(averages: list[Tensor], values: list[Tensor], updates: Tensor) -> None:
        n = int(updates)
        get_ema_multi_avg_fn(min(decay, n / (n + 9)))(averages, values, updates)

    return update


@pytest.mark.parametrize("decay", [0.15, 0.99])
def test_the_average_is_torchs_bit_for_bit_also_after_a_resume(decay: float) -> None:
    model = tiny_net_with_state(4)
    own = AveragedWeights(model, decay)
    torchs = AveragedModel(model, multi_avg_fn=ramp(decay))
    for step in range(6):
        change(model)
        if step == 2:
            saved, own = own.state(), AveragedWeights(model, decay)
            own.load_state(saved)
        own.update()
        torchs.update_parameters(model)
        averages, expected = own.model.parameters(), torchs.module.parameters()
        assert all(map(torch.equal, averages, expected))


def test_batch_statistics_are_those_that_torch_computes_for_the_averaged_weights() -> None:
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(4), nn.BatchNorm2d(2, momentum=0.5)]
    model = nn.Sequential(nn.Conv2d(3, 4, 3), norms[0], nn.Dropout(), nn.Conv2d(4, 2, 3), norms[1])
    own = AveragedWeights(model, 0.9)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    own.update()
    batches = [torch.randn(4, 3, 8, 8) + number for number in range(3)]
    own.measure_statistics(batches)
    assert not any(module.training for module in own.model.modules())
    for norm in norms:
        norm.momentum = None  # a mean over all batches
    for batch in batches:
        for module in model.modules():
            module.train(module in norms)
        model(batch)
    expected = model.state_dict()
    for key, value in own.model.state_dict().items():
        torch.testing.assert_close(value, expected[key])


def test_statistics_of_earlier_weights_are_replaced() -> None:
    first, later = torch.randn(2, 4, 3, 8, 8)
    own = AveragedWeights(nn.Sequential(nn.BatchNorm2d(3)), 0.9)
    for batches in ([first], [first, later]):
        own.update()
        own.measure_statistics(batches)
        expected = torch.stack(batches).mean((0, 1, 3, 4))
        torch.testing.assert_close(own.model.state_dict()["0.running_mean"], expected)


def test_only_batch_normalization_has_statistics() -> None:
    assert not AveragedWeights(nn.Linear(2, 2), 0.9).has_statistics
    assert AveragedWeights(nn.Sequential(nn.BatchNorm2d(3)), 0.9).has_statistics


def test_the_statistics_of_a_norm_in_eval_mode_are_copied() -> None:
    """A model freezes them so, in a `train()` of its own."""
    frozen, free = nn.BatchNorm2d(3).eval(), nn.BatchNorm2d(3)
    own = AveragedWeights(nn.Sequential(frozen, free), 0.9)
    statistics = [frozen.running_mean, frozen.running_var, free.running_mean, free.running_var]
    for each in statistics:
        assert each is not None
        each.fill_(7)
    own.update()
    own.measure_statistics([torch.zeros(4, 3, 8, 8)])
    state = own.model.state_dict()
    assert state["0.running_mean"].tolist() == state["0.running_var"].tolist() == [7] * 3
    assert 7 not in [*state["1.running_mean"].tolist(), *state["1.running_var"].tolist()]


def test_other_buffers_are_copied() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Identity())
    mask = torch.tensor([-torch.inf, 1.0])
    model[1].register_buffer("mask", mask)
    own = AveragedWeights(model, 0.9)
    for value in (2.0, 3.0):
        mask[1] = value
        own.update()
    assert own.model.state_dict()["1.mask"].tolist() == [-torch.inf, 3.0]
    model[1].mask = torch.tensor([5.0, 5.0])  # another tensor in its place
    own.update()
    assert own.model.state_dict()["1.mask"].tolist() == [5, 5]


def test_frozen_weights_are_copied() -> None:
    """Also infinite ones, which have no average, and those that train later."""
    model = nn.Linear(1, 1, bias=False)
    model.floor = nn.Parameter(torch.tensor([-torch.inf]), requires_grad=False)
    own = AveragedWeights(model, 0.9)
    for value in (2.0, 3.0):
        nn.init.constant_(model.weight.requires_grad_(value == 3), value)
        own.update()
    state = own.model.state_dict()
    assert state["floor"].tolist() == [-torch.inf]
    torch.testing.assert_close(state["weight"], torch.tensor([[2.9]]))


def test_an_update_is_one_call_per_type_whatever_the_size_of_the_model() -> None:
    model = nn.Sequential(*(nn.BatchNorm2d(3) for _ in range(20)))
    for module in model:
        module.register_buffer("constant", torch.zeros(2))
    average = AveragedWeights(model, 0.9)
    average.update()
    with Calls() as calls:
        average.update()
    assert calls.names == ["aten._foreach_lerp_.Scalar", "aten._foreach_copy_.default"]


def test_averaged_weights_of_a_short_run_classify_as_well_as_the_raw_ones() -> None:
    """20 steps on 128 digits, as a first fine-tuning: constant decay and copied statistics fail."""
    digits, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(digits, dtype=torch.float32).view(-1, 1, 8, 8).expand(-1, 3, 8, 8)
    images, targets = nn.functional.interpolate(pixels, size=16), torch.tensor(labels)
    settings = ("optim=adamw", "optim.lr=0.01", "optim.ema_decay=0.99", "trainer.epochs=10")
    config, _ = load_train_config([f"model.name={__name__}.normalized_net", *settings])
    task = task_of(classes(10))
    learner = Learner(config, Devices(torch.device("cpu"), None), task, 2, Path())
    for step in range(20):
        batch = torch.arange(64) + 64 * (step % 2)
        learner.loss(images[batch], targets[batch], step)
        learner.update()
    assert learner.statistics_steps == 1
    learner.measure_statistics([images[batch]], first_step=19)
    accuracy = {}
    for name, model in (("averaged", learner.exported), ("raw", learner.model)):
        found = model.eval()(images[128:]).argmax(1)
        accuracy[name] = float((found == targets[128:]).double().mean())
    assert accuracy["averaged"] > 0.6 and accuracy["averaged"] > accuracy["raw"] - 0.1, accuracy


def normalized_net(num_classes: int) -> nn.Module:
    """A small network with batch normalization."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise([3, 16, 32]):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 16, num_classes))
