"""Optimizers and schedules: torch's by word, your own by path, both with kwargs."""

import copy
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import OPTIMIZERS, OptimConfig, load_train_config
from entry_point.job.devices import Devices
from entry_point.training.learner import Learner
from entry_point.training.optim import (
    build_optimizer,
    parameter_groups,
    rate_factor,
)
from tests.entry_point.training.tasks.label_sources import classes, task_of
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


def undecayed(model: nn.Module) -> set[str]:
    """The names of parameters without weight decay."""
    groups = parameter_groups(OptimConfig(weight_decay=0.1), model)
    names = [name for group in groups for name, _ in group["params"]]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    return {name for g in groups if not g["weight_decay"] for name, _ in g["params"]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", set()),
        ("vit_b_32", {"class_token", "pos_embedding"}),
        ("swin_t", {"relative_position_bias_table"}),
        ("swin_v2_t", {"logit_scale"}),
        ("convnext_tiny", {"layer_scale"}),
    ],
)
def test_of_torchvisions_parameters_only_matrices_and_kernels_decay(
    name: str, expected: set[str]
) -> None:
    with torch.device("meta"):
        model = torchvision.models.get_model(name)
    spared = undecayed(model)
    assert {n for n, p in model.named_parameters() if p.dim() <= 1} <= spared
    assert {n.rpartition(".")[2] for n in spared if model.get_parameter(n).dim() > 1} == expected
    decayed = {n for n, _ in model.named_parameters()} - spared
    assert all(n.endswith("weight") for n in decayed)


@pytest.mark.parametrize(
    "name",
    [
        *("deit_tiny_distilled_patch16_224", "swinv2_tiny_window8_256", "convnext_atto"),
        *("xcit_nano_12_p16_224", "levit_128s"),
    ],
)
def test_the_same_parameters_of_timms_models_decay_as_with_timms_own_groups(name: str) -> None:
    timm = pytest.importorskip("timm")
    from timm.optim import param_groups_weight_decay

    with torch.device("meta"):
        model = timm.create_model(name)
    listed = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
    theirs = param_groups_weight_decay(model, 0.1, no_weight_decay_list=listed)
    spared = {id(p) for group in theirs if not group["weight_decay"] for p in group["params"]}
    assert undecayed(model) == {n for n, p in model.named_parameters() if id(p) in spared}


GROUPS = "optim.groups={6.*:{lr:0.1,weight_decay:0.5},2.w*:{lr:0.2},2.*:{}}"


def test_parameters_get_their_own_arguments_by_name_and_follow_the_same_schedule() -> None:
    config, _ = load_train_config([GROUPS, "optim.lr=1", "optim.weight_decay=0.3"])
    optimizer = build_optimizer(config.optim, tiny_net(4), CPU)
    schedule = LambdaLR(optimizer, rate_factor(config.optim, steps_per_epoch=10, epochs=2))
    found = {
        group["name"]: (group["param_names"], group["initial_lr"], group["weight_decay"])
        for group in optimizer.param_groups
    }
    assert found == {
        "*": (["0.weight"], 1, 0.3),
        "* undecayed": (["0.bias"], 1, 0),
        "6.*": (["6.weight"], 0.1, 0.5),
        "6.* undecayed": (["6.bias"], 0.1, 0.5),
        "2.w*": (["2.weight"], 0.2, 0.3),
        "2.* undecayed": (["2.bias"], 1, 0),
    }
    for _ in range(15):
        optimizer.step()
        schedule.step()
    halfway = [group["lr"] / group["initial_lr"] for group in optimizer.param_groups]
    assert halfway == pytest.approx([0.5] * 6)


def test_a_pattern_counts_beside_one_for_all_other_parameters() -> None:
    """As in recipes whose source decays all weights, for which a user sets another rate."""
    both = "optim.groups={'*':{weight_decay:0.1},6.*:{lr:0.2}}".replace("'", "")
    groups = {group["name"]: group for group in built(both, "optim.lr=1").param_groups}
    assert {name: group["lr"] for name, group in groups.items()} == {
        "*": 1, "* undecayed": 1, "6.*": 0.2, "6.* undecayed": 0.2
    }  # fmt: skip
    assert groups["* undecayed"]["weight_decay"] == 0.1


def test_an_own_optimizer_can_set_rates_by_layer() -> None:
    groups = built("optim.name=tests.own_optimizers.by_layer", "optim.lr=1").param_groups
    rates = {name: group["lr"] for group in groups for name in group["param_names"]}
    assert rates == {
        f"{layer}.{kind}": 0.5 ** (6 - layer) for layer in (0, 2, 6) for kind in ("weight", "bias")
    }


def test_frozen_parameters_are_not_trained() -> None:
    config, _ = load_train_config(
        ["model.name=tests.own_models.tiny_net", "optim.groups={0.*:{lr:0},2.bias:{lr:0}}"]
    )
    some = Learner(config, Devices(CPU, None), task_of(classes(4)), 10, Path())
    before = copy.deepcopy(some.model.state_dict())
    for step in range(2):
        some.loss(torch.randn(4, 3, 16, 16), torch.arange(4), step)
        some.update()
    after = some.model.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved == {"2.weight", "6.weight", "6.bias"}


def test_all_but_the_head_can_be_frozen() -> None:
    head = built("optim.groups={6.*:{lr:0.1},*:{lr:0}}").param_groups
    assert [name for group in head for name in group["param_names"]] == ["6.weight", "6.bias"]


def test_kwargs_reach_the_optimizer() -> None:
    optimizer = built("optim.name=rmsprop", "optim.kwargs.momentum=0.5", "optim.kwargs.eps=1e-3")
    assert (optimizer.defaults["momentum"], optimizer.defaults["eps"]) == (0.5, 1e-3)
    assert built("optim.kwargs={dampening:0.0,maximize:true}").defaults["maximize"] is True


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ("kwargs.lr=1", "kwargs.lr=1: is set by the job; remove it"),
        ("groups={head.*:{lr:1}}", "groups=head.*: matches none of the parameters 0.weight, 2.wei"),
        ("groups={6.*:{rate:1}}", "groups.6.*.rate=1: no such argument of a group; sgd takes lr,"),
        ("groups={*:{lr:0}}", "groups: freezes all parameters; leave some to train"),
        ("kwargs.momentum=-1", "name=sgd: cannot be built (Invalid momentum value: -1)"),
        ("kwargs.momentum=high", "name=sgd: cannot be built ('<' not supported between instances"),
        (
            "name=tests.own_optimizers.no_optimizer",
            "must return a torch.optim.Optimizer, not tuple",
        ),
        (
            "schedule=tests.own_optimizers.text",
            "must return a number from 0 on, not '0.0 of 5' at",
        ),
        ("schedule=tests.own_optimizers.rising", "must return a number from 0 on, not -1.0 at epo"),
        ("schedule=tests.own_optimizers.listed", "cannot be computed at epoch 3 (tuple index out"),
        (
            "schedule=step optim.schedule_kwargs.every=0",
            "division by zero); correct it, or optim.schedule_kwargs={every:0}",
        ),
        ("schedule=step optim.schedule_kwargs.every=soon", "at epoch 0 (unsupported operand"),
        (
            "groups={6.*:{lr:-0.1}}",
            "groups.6.*.lr=-0.1: Input should be greater than or equal",
        ),
        ("groups={6.*:{lr:null}}", "groups.6.*.lr=null: Input should be a valid number"),
        ("groups={6.*:{lr:nan}}", "groups.6.*.lr=nan: Input should be a finite number"),
        ("groups={6.*:{weight_decay:-1}}", "groups.6.*.weight_decay=-1: Input should be greater"),
    ],
)
def test_what_cannot_be_meant_is_one_line(overrides: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config, _ = load_train_config(f"optim.{overrides}".split())
        optimizer = build_optimizer(config.optim, tiny_net(4), CPU)
        LambdaLR(optimizer, rate_factor(config.optim, 10, config.trainer.epochs))
    assert str(caught.value).startswith("optim.") and error in str(caught.value)


def test_an_own_schedule_follows_the_warm_up_and_knows_the_epoch() -> None:
    config = OptimConfig(
        schedule="tests.own_optimizers.falling", schedule_kwargs={"power": 2}, warmup_epochs=1
    )
    factor = rate_factor(config, steps_per_epoch=10, epochs=4)
    assert [factor(step) for step in (0, 9, 20, 30, 39)] == pytest.approx(
        [0.1, 1.0, 0.25, 0.0625, 0.000625]
    )


def test_an_own_schedule_may_compute_with_numpy_and_its_rates_are_read_from_a_checkpoint() -> None:
    config = OptimConfig(schedule="tests.own_optimizers.of_numpy", warmup_epochs=0)
    rate = rate_factor(config, steps_per_epoch=10, epochs=4)(20)
    assert (rate, type(rate)) == (0.5, float)


def test_an_own_schedule_is_not_asked_for_an_epoch_after_the_last() -> None:
    """torch computes the rate of the step after the last one, too."""
    config = OptimConfig(schedule="tests.own_optimizers.listed", warmup_epochs=0)
    optimizer = build_optimizer(config, tiny_net(4), CPU)
    schedule = LambdaLR(optimizer, rate_factor(config, steps_per_epoch=2, epochs=3))
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"] / config.lr)
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([1, 1, 0.5, 0.5, 0.1, 0.1])
