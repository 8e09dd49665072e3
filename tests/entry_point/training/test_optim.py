"""Optimizers and schedules: torch's by word, your own by path, both with kwargs."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import OPTIMIZERS, OptimConfig, load_train_config
from entry_point.training.optim import build_optimizer, build_schedule, rate_factor
from tests.entry_point.training import forked
from tests.entry_point.training.training_jobs import read_records, timeless
from tests.own_models import tiny_net

CPU = torch.device("cpu")


def built(*overrides: str, device: str = "cpu") -> torch.optim.Optimizer:
    """The optimizer of these overrides, for a small model."""
    config, _ = load_train_config(overrides)
    return build_optimizer(config.optim, tiny_net(4), torch.device(device))


@pytest.mark.parametrize("name", [*OPTIMIZERS, "torch.optim.RMSprop", "tests.own_optimizers.Sign"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_optimizer_takes_the_rate_and_the_weight_decay(name: str, device: str) -> None:
    optimizer = built(f"optim.name={name}", "optim.lr=0.5", "optim.weight_decay=0.1", device=device)
    decay, keep = optimizer.param_groups
    assert (decay["weight_decay"], keep["weight_decay"], keep["lr"]) == (0.1, 0.0, 0.5)


@pytest.mark.parametrize("name", [*OPTIMIZERS, "tests.own_optimizers.Sign"])
def test_every_optimizer_learns_and_follows_the_schedule(name: str) -> None:
    torch.manual_seed(0)
    model, config = tiny_net(4), OptimConfig(name=name, lr=0.01)
    optimizer = build_optimizer(config, model, CPU)
    schedule = build_schedule(config, optimizer, steps_per_epoch=10, epochs=2)
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8) % 4
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0)


def test_kwargs_reach_the_optimizer() -> None:
    optimizer = built("optim.name=rmsprop", "optim.kwargs.momentum=0.5", "optim.kwargs.eps=1e-3")
    assert (optimizer.defaults["momentum"], optimizer.defaults["eps"]) == (0.5, 1e-3)
    assert built("optim.kwargs={dampening:0.0,maximize:true}").defaults["maximize"] is True


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (
            ["optim.name=adamv"],
            "optim.name=adamv: must be one of sgd, adamw, adadelta, adafactor, adagrad, adam, "
            "adamax, nadam, radam, rmsprop, or the dotted path of your own; did you mean adam?",
        ),
        (
            ["optim.name=torch.optim.RMSProp"],
            "optim.name=torch.optim.RMSProp: torch.optim has no RMSProp; did you mean RMSprop?",
        ),
        (
            ["optim=adamw", "optim.kwargs.epsilon=1e-6"],
            "optim.kwargs.epsilon=1e-06: no such argument; AdamW takes eps, weight_decay, amsgrad, "
            "maximize, foreach, capturable, differentiable, fused; did you mean eps?",
        ),
        (["optim.kwargs.lr=1"], "optim.kwargs.lr=1: is set by the job; remove it"),
        (
            ["optim=adamw", "optim.kwargs.eps=-1"],
            "optim.name=adamw: cannot be built (Invalid epsilon value: -1)",
        ),
        (
            ["optim.name=tests.own_optimizers.no_optimizer"],
            "optim.name=tests.own_optimizers.no_optimizer: must return a torch.optim.Optimizer, "
            "not tuple",
        ),
        (
            ["optim.schedule=cosin"],
            "optim.schedule=cosin: must be one of cosine, step, or the dotted path of your own; "
            "did you mean cosine?",
        ),
        (
            ["optim.schedule_kwargs.power=2"],
            "optim.schedule_kwargs={'power': 2}: optim.schedule=cosine has none; remove it",
        ),
        (
            ["optim.schedule=tests.own_optimizers.falling", "optim.schedule_kwargs.pow=2"],
            "optim.schedule_kwargs.pow=2: no such argument; falling takes power; did you mean "
            "power?",
        ),
        (
            ["optim.schedule=tests.own_optimizers.text"],
            "optim.schedule=tests.own_optimizers.text: must return a finite number, not '0.0 of "
            "5' at epoch 0",
        ),
        (
            ["optim.schedule=math.hypotenuse"],
            "optim.schedule=math.hypotenuse: math has no hypotenuse; did you mean hypot?",
        ),
    ],
)
def test_what_cannot_be_meant_is_one_line(overrides: list[str], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config, _ = load_train_config(overrides)
        optimizer = build_optimizer(config.optim, tiny_net(4), CPU)
        build_schedule(config.optim, optimizer, 10, config.trainer.epochs)
    assert str(caught.value) == error


def test_an_own_schedule_follows_the_warm_up_and_knows_the_epoch() -> None:
    config = OptimConfig(
        schedule="tests.own_optimizers.falling", schedule_kwargs={"power": 2}, warmup_epochs=1
    )
    factor = rate_factor(config, steps_per_epoch=10, epochs=4)
    assert [factor(step) for step in (0, 9, 20, 30, 40)] == pytest.approx(
        [0.1, 1.0, 0.25, 0.0625, 0.0]
    )


OWN = (
    "model.name=project.models.small_net",
    "model.kwargs.width=8",
    "optim.name=tests.own_optimizers.Sign",
    "optim.kwargs.scale=0.1",
    "optim.schedule=tests.own_optimizers.falling",
    "optim.schedule_kwargs.power=0.5",
    "trainer.epochs=3",
)


def test_a_resumed_run_with_an_own_model_optimizer_and_schedule_ends_the_same(
    tmp_path: Path, photo_folder: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert forked.run(whole, photo_folder, OWN) == 0
    forked.run_until_step(parts, photo_folder, OWN, 4, signal.SIGKILL)
    assert not (parts / "model" / "model.pt").exists()
    assert forked.run(parts, photo_folder, OWN) == 0
    states: list[dict[str, Any]] = [
        torch.load(root / "model" / "model.pt", weights_only=True) for root in (whole, parts)
    ]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert timeless(read_records(whole)) == timeless(read_records(parts))
