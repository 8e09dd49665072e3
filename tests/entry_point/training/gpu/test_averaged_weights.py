"""The moving average of the weights: torch's values, in few calls that never read the device."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

from entry_point.config.config_errors import ConfigError
from entry_point.training.averaged_weights import AveragedWeights
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


def test_the_average_is_torchs_bit_for_bit_also_after_a_resume() -> None:
    model = tiny_net_with_state(4)
    own = AveragedWeights(model, 0.9)
    torchs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in range(4):
        change(model)
        if step == 2:
            saved, own = own.state(), AveragedWeights(model, 0.9)
            own.load_state(saved)
        own.update()
        torchs.update_parameters(model)
        expected = torchs.module.state_dict()
        assert all(
            torch.equal(value, expected[key]) for key, value in own.model.state_dict().items()
        )


def test_a_checkpoint_of_earlier_averages_is_refused_in_one_line() -> None:
    own = AveragedWeights(tiny_net_with_state(4), 0.9)
    with pytest.raises(ConfigError, match=r"optim.ema_decay=0.9: .*earlier version.*resume=false"):
        own.load_state({"ema": {"n_averaged": torch.tensor(3)}})


def test_an_update_is_one_call_per_type_whatever_the_size_of_the_model() -> None:
    model = nn.Sequential(*(nn.BatchNorm2d(3) for _ in range(20)))
    average = AveragedWeights(model, 0.9)
    average.update()
    with Calls() as calls:
        average.update()
    copy = "aten._foreach_copy_.default"  # of float and of integer buffers
    assert calls.names == ["aten._foreach_lerp_.Scalar", copy, copy]
