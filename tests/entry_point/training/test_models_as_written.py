"""Models as people write them: other answers than logits, layers that steps skip, batch
normalization of one image, and parts that Python cannot copy."""

import re
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import ModelConfig, load_train_config
from entry_point.job.program import ExitCode
from entry_point.training.averaged_weights import AveragedWeights
from entry_point.training.learner import explain_step
from entry_point.training.models import build_model
from tests.entry_point.training import forked
from tests.entry_point.training.test_compile import note_graphs
from tests.own_models import tiny_net, tiny_net_with_state

HERE = f"model.name={__name__}."


class Pair(NamedTuple):
    logits: Tensor
    aux: Tensor


class Answering(nn.Module):
    """Answers in one of these forms."""

    def __init__(self, num_classes: int, form: str = "tensor") -> None:
        super().__init__()
        self.net, self.form = tiny_net(num_classes), form
        if form == "pair of a distilled model":
            self.head_dist = nn.Identity()

    def forward(self, images: Tensor) -> Any:
        logits: Tensor = self.net(images)
        return {
            "tensor": logits,
            "Hugging Face's object": SimpleNamespace(logits=logits),
            "Hugging Face's dict": OrderedDict(logits=logits, hidden_states=(logits,)),
            "torchvision's named pair": Pair(logits, logits + 1),
            "torchvision's dict": {"out": logits, "aux": logits + 1},
            "pair of a distilled model": (logits - 1, logits + 1),
            "dict": {"boxes": logits, "scores": logits},
            "pair": (logits, logits),
            "object": SimpleNamespace(scores=logits),
            "none": None,
            "a box per place": logits[:, None].expand(-1, 4, -1),
        }[self.form]


def answers(form: str) -> nn.Module:
    return build_model(ModelConfig(HERE.partition("=")[2] + "Answering", {"form": form}), 3)


@pytest.mark.parametrize(
    "form",
    [
        *("Hugging Face's object", "Hugging Face's dict", "torchvision's named pair"),
        *("torchvision's dict", "pair of a distilled model"),
    ],
)
def test_logits_are_taken_as_the_libraries_mean_them(form: str) -> None:
    model, images = answers(form), torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model(images), model.get_submodule("net")(images))


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("dict", "returns a dict of boxes, scores; return its logits alone"),
        ("pair", "returns a tuple of 2 items; return its logits alone"),
        ("object", "returns a SimpleNamespace; return its logits alone"),
        ("none", "returns a NoneType; return its logits alone"),
    ],
)
def test_any_other_answer_is_one_line(form: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"{says}, a tensor$"):
        answers(form)(torch.randn(2, 3, 32, 32))


def test_a_task_of_your_own_may_have_answers_of_another_form() -> None:
    assert answers("a box per place")(torch.randn(2, 3, 32, 32)).shape == (2, 4, 3)


def test_a_compiled_model_ends_with_the_line(tmp_path: Path, photo_folder: Path) -> None:
    job = [f"{HERE}Answering", "model.kwargs.form=pair", "trainer.compile=default"]
    assert forked.run(tmp_path, photo_folder, job, prepare=note_graphs) == ExitCode.USAGE
    assert (tmp_path / "graphs").is_file()
    assert "returns a tuple of 2 items" in (tmp_path / "log").read_text().splitlines()[-1]


# -- several ranks


class Unused(nn.Module):
    """Has layers that no step uses, or that one rank skips in its second step."""

    def __init__(self, num_classes: int, skips: bool = False) -> None:
        super().__init__()
        net = tiny_net(num_classes)
        assert isinstance(net, nn.Sequential)
        self.net, self.projection = net, nn.Linear(16, 16)
        self.skips, self.calls = skips, 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += self.training
        first = torch.distributed.is_initialized() and torch.distributed.get_rank() == 0
        features = self.net[:-1](images)
        if self.skips and not (first and self.calls == 2):
            features = self.projection(features)
        logits: Tensor = self.net[-1](features)
        return logits


def test_an_unused_layer_is_named_on_several_ranks_and_each_way_out_works(
    tmp_path: Path, photo_folder: Path
) -> None:
    job = [f"{HERE}Unused", "trainer.epochs=1"]
    assert forked.run(tmp_path / "two", photo_folder, job, ranks=2) == ExitCode.USAGE
    line = (tmp_path / "two" / "log").read_text().splitlines()[-1]
    assert "does not use projection.weight, projection.bias, whose gradients" in line
    ways = re.findall(r"(?:with|set) (\w+\.\S+=\S+?);? ?(?:if|$)", line)
    assert ways == [
        "optim.groups={projection*:{lr:0}}",
        "trainer.find_unused_parameters=true",
    ], line
    for number, way in enumerate(ways):
        root = tmp_path / f"way{number}"
        assert forked.run(root, photo_folder, [*job, way], ranks=2) == 0, way


def test_a_layer_that_one_rank_skips_is_named(tmp_path: Path, photo_folder: Path) -> None:
    job = [f"{HERE}Unused", "model.kwargs.skips=true", "trainer.epochs=1"]
    ranks = forked.start_ranks(tmp_path, photo_folder, job, 2)
    for rank in ranks:
        rank.join(timeout=120)
    assert ranks[0].exitcode == ExitCode.USAGE and ranks[1].exitcode not in (0, None)
    assert "does not use projection.weight" in (tmp_path / "log").read_text()


# -- one image


@pytest.mark.parametrize(
    ("settings", "ranks", "says", "advised"),
    [
        (["trainer.batch_size=1"], 1, "ranks=1 x optim.accumulate=1", 2),
        (["trainer.batch_size=4", "optim.accumulate=2"], 2, "ranks=2 x optim.accumulate=2", 8),
    ],
)
def test_the_least_batch_for_batch_normalization_counts_ranks_and_pieces(
    settings: list[str], ranks: int, says: str, advised: int
) -> None:
    config, _ = load_train_config(settings)
    error = ValueError("Expected more than 1 value per channel when training, got input size")
    line = str(explain_step(error, config, ranks))
    assert says in line and f"set trainer.batch_size={advised} or more" in line


def test_one_image_for_batch_normalization_is_one_line_whose_advice_works(
    tmp_path: Path, photo_folder: Path
) -> None:
    job = [f"{HERE}normalized", "trainer.epochs=1", "optim.accumulate=2"]
    assert forked.run(tmp_path, photo_folder, [*job, "trainer.batch_size=2"]) == ExitCode.USAGE
    line = (tmp_path / "log").read_text().splitlines()[-1]
    advised = re.search(r"set (trainer\.batch_size=\d+)", line)
    assert advised
    assert forked.run(tmp_path / "b", photo_folder, [*job, advised[1]]) == 0


def normalized(num_classes: int) -> nn.Module:
    net = tiny_net(num_classes)
    assert isinstance(net, nn.Sequential)
    return nn.Sequential(*net[:-1], nn.BatchNorm1d(16), net[-1])


# -- averaged weights


def locked(num_classes: int) -> nn.Module:
    model = tiny_net(num_classes)
    model.lock = threading.Lock()  # type: ignore[assignment]
    return model


def old_weight_norm(num_classes: int) -> nn.Module:
    model = tiny_net(num_classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(model.get_submodule("6"))
    return model


def new_weight_norm(num_classes: int) -> nn.Module:
    model = tiny_net(num_classes)
    nn.utils.parametrizations.weight_norm(model.get_submodule("6"))
    return model


@pytest.mark.parametrize("build", [locked, old_weight_norm])
def test_a_model_that_cannot_be_copied_for_its_average_is_named(
    build: Callable[[int], nn.Module],
) -> None:
    says = r"optim\.ema_decay=0\.9: averages a copy of the model, and Sequential cannot be"
    with pytest.raises(ConfigError, match=says):
        AveragedWeights(build(3), 0.9)


def test_the_advised_weight_norm_can_be_averaged() -> None:
    averages = AveragedWeights(model := new_weight_norm(3), 0.9)
    averages.update()
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(averages.model(images), model.eval()(images))


class Frozen(nn.Module):
    """With batch statistics that it keeps, if it says so itself."""

    def __init__(self, num_classes: int, says: str) -> None:
        super().__init__()
        self.net, self.says = tiny_net_with_state(num_classes), says
        self.net.get_submodule("1").eval()
        if says == "all":
            self.eval()  # as libraries leave what they load

    def train(self, mode: bool = True) -> Any:  # without the result that torch's has
        super().train(mode)
        if self.says == "train":
            self.net.get_submodule("1").eval()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits


@pytest.mark.parametrize("says", ["nothing", "train", "all"])
def test_parts_that_do_not_stay_in_evaluation_mode_are_named(
    says: str, tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [f"{HERE}Frozen", f"model.kwargs.says={says}", "trainer.epochs=1"]
    ema = ["optim.ema_decay=0.9"]
    assert forked.run(tmp_path, photo_folder, overrides + ema * (says == "train")) == 0
    log = (tmp_path / "log").read_text()
    warned = f"{HERE}Frozen: net.1 was in evaluation mode and trains like the rest; if it must"
    assert (warned in log) == (says == "nothing"), log
    statistics = load_file(tmp_path / "model" / "model.safetensors")["net.1.running_mean"]
    assert bool(statistics.any()) == (says != "train")
