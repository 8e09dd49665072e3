"""torchvision's and timm's models by name, your own by path, and weights from published files."""

import os
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from entry_point.config import resolve
from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import ModelConfig
from entry_point.training.models import build_model
from tests.own_models import tiny_net


@pytest.mark.parametrize("name", ["googlenet", "inception_v3", "lraspp_mobilenet_v3_large"])
def test_a_model_with_auxiliary_heads_trains_all_its_weights(name: str) -> None:
    """DDP would hang on a parameter that gets no gradient."""
    with torch.device("meta"):
        model = build_model(ModelConfig(name), 7, image_size=80).train()
        logits = model(torch.empty(2, 3, 80, 80))
        assert logits.shape[:2] == (2, 7)
        logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", ["vit_b_16", "maxvit_t", "timm/vit_tiny_patch16_224"])
def test_a_model_that_needs_the_image_size_gets_it(name: str) -> None:
    with torch.device("meta"):
        model = build_model(ModelConfig(name), 7, image_size=448)
        assert model(torch.empty(1, 3, 448, 448)).shape == (1, 7)
    if not name.startswith("timm/"):
        message = rf"model\.name={name}: cannot take data\.image_size=225"
        with pytest.raises(ConfigError, match=message):
            build_model(ModelConfig(name), 7, image_size=225)


PUBLISHED: dict[str, dict[str, object]] = {
    "densenet121": {},
    "googlenet": {"init_weights": False},
    "lraspp_mobilenet_v3_large": {"weights_backbone": None},
}


def published(name: str) -> "OrderedDict[str, torch.Tensor]":
    """A state dict with the keys and shapes of the published file."""
    model = torchvision.models.get_model(name, weights=None, **PUBLISHED[name])
    state: OrderedDict[str, torch.Tensor] = model.state_dict()
    old = re.compile(r"(denselayer\d+\.(?:norm|conv))([12])\.")
    return OrderedDict((old.sub(r"\1.\2.", key), value) for key, value in state.items())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_weights_load_except_the_head(name: str, tmp_path: Path) -> None:
    state = published(name)
    torch.save(state, tmp_path / "published.pth")
    model = build_model(ModelConfig(name, weights=str(tmp_path / "published.pth")), 7)
    first = next(iter(state))
    assert torch.equal(model.state_dict()[first], state[first])


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_weights_that_are_no_regular_file_are_refused(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    """Opening a FIFO would wait for its writer."""
    path = tmp_path / "weights.pt"
    make(path)
    for weights in (path, tmp_path):
        with pytest.raises(ConfigError, match=r"must be a file, or a folder .*; found 0 in "):
            build_model(ModelConfig(weights=str(weights)), 7)


@pytest.mark.parametrize("content", [[1, 2], {1: torch.ones(3)}, {"model": {"a": 1}}])
def test_the_error_names_a_file_of_other_objects(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(ConfigError, match="it holds no named tensors"):
        build_model(ModelConfig(weights=str(tmp_path / "weights.pt")), 7)


def test_the_only_file_of_a_channel_is_loaded_except_a_head_of_another_size(
    tmp_path: Path,
) -> None:
    saved = tiny_net(7).state_dict()
    (channel := tmp_path / "weights").mkdir()
    torch.save(saved, channel / "pretrained.pth")
    model = build_model(ModelConfig("tests.own_models.tiny_net", weights="weights"), 3, tmp_path)
    built = model.state_dict()
    assert all(torch.equal(built[key], saved[key]) for key in built if not key.startswith("6."))
    assert built["6.weight"].shape == (3, 16)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("os.path.join.nothing", {}, r"model\.name=os\.path\.join\.nothing"),
        ("timm/resnet18d9", {}, r"timm [\d.]+ has no such model or weights; did you mean"),
        ("timm/resnet18.a1_in2k", {}, r"did you mean resnet18\.a1_in1k\?"),
        ("timm/resnet18", {"drop_pat_rate": 0.1}, r"cannot take .*argument 'drop_pat_rate'"),
        ("timm/resnet18", {"pretrained": True}, r"kwargs\.pretrained=true: is set by the job"),
        ("os.getcwd", {}, r"model\.kwargs=.*unexpected keyword argument 'num_classes'"),
        ("builtins.dict", {}, r"must return a torch\.nn\.Module, not dict"),
    ],
)
def test_the_error_names_a_model_that_cannot_be_built(
    name: str, kwargs: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(ModelConfig(name, kwargs), 3)


# One small model of each kind: no image size, one that is fixed, a convolutional head, two heads.
TIMM = [
    *(("test_resnet", "pth"), ("test_vit", "safetensors")),
    *(("test_byobnet", "safetensors"), ("deit_tiny_distilled_patch16_224", "pth")),
]


@pytest.mark.parametrize(("name", "kind"), TIMM)
def test_weights_of_timms_models_load_except_the_head(name: str, kind: str, tmp_path: Path) -> None:
    config = ModelConfig(f"timm/{name}", weights=str(tmp_path / f"weights.{kind}"))
    size = 64
    source = build_model(ModelConfig(config.name), 1000, image_size=size).state_dict()
    if kind == "pth":
        torch.save({"state_dict": source}, str(config.weights))
    else:
        save_file(source, str(config.weights))
    model = build_model(config, 7, image_size=size)
    built = model.state_dict()
    different = {key for key, value in built.items() if value.shape != source[key].shape}
    assert different and all(key.startswith(("head", "fc")) for key in different)
    assert all(torch.equal(built[key], source[key]) for key in set(built) - different)
    assert model.eval()(torch.zeros(2, 3, size, size)).shape == (2, 7)


def test_kwargs_reach_every_kind_of_model() -> None:
    def size(name: str, **kwargs: object) -> int:
        model = build_model(ModelConfig(name, kwargs=kwargs), 7)
        return sum(p.numel() for p in model.parameters())

    assert size("mobilenet_v2", width_mult=0.5) < size("mobilenet_v2")
    assert size("timm/test_vit", depth=3) > size("timm/test_vit", depth=2)
    assert size("project.models.small_net", width=64) > size("project.models.small_net")


def test_without_timm_the_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError) as caught:
        build_model(ModelConfig("timm/resnet18"), 7)
    assert str(caught.value) == (
        "model.name=timm/resnet18: needs the package timm: run `make setup EXTRAS=timm`, or build "
        "the image with `make image EXTRAS=timm`"
    )
