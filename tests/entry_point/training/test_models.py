"""torchvision's and timm's models by name, your own by path, and weights from published files."""

import io
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import ModelConfig, OptimConfig
from entry_point.training import models
from entry_point.training.models import build_model
from entry_point.training.optim import build_optimizer

SMALLEST = (
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "efficientnet_v2_s",
    "googlenet",
    "inception_v3",
    "maxvit_t",
    "mnasnet0_5",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "regnet_y_400mf",
    "resnet18",
    "resnext50_32x4d",
    "shufflenet_v2_x0_5",
    "squeezenet1_1",
    "swin_t",
    "swin_v2_t",
    "vgg11",
    "vit_b_16",
    "wide_resnet50_2",
)
"""One model of each of torchvision's families."""
LEAST_SIZES = {"maxvit_t": 224, "inception_v3": 80}


def test_the_list_has_every_family() -> None:
    def family(name: str) -> str:
        match = re.match(r"[a-z]+(_v\d)?", name)
        assert match
        return match[0]

    names = torchvision.models.list_models(module=torchvision.models)
    assert {family(name) for name in names} == {family(name) for name in SMALLEST}


@pytest.mark.parametrize("name", SMALLEST)
def test_a_step_changes_the_weights_of_a_model_of_each_family(name: str) -> None:
    size = LEAST_SIZES.get(name, 64)
    torch.manual_seed(0)
    model = build_model(ModelConfig(name), 7, image_size=size).train()
    optimizer = build_optimizer(OptimConfig(), model, torch.device("cpu"))
    head = list(model.parameters())[-1]
    before = head.detach().clone()
    logits = model(torch.randn(2, 3, size, size))
    assert logits.shape == (2, 7)
    nn.functional.cross_entropy(logits, torch.tensor([1, 5])).backward()
    optimizer.step()
    assert not torch.equal(head, before)
    # DDP would hang on a parameter that gets no gradient. No sum is finite with a NaN in it.
    assert all(p.grad is not None and p.grad.sum().isfinite() for p in model.parameters())
    assert all(p.sum().isfinite() for p in model.parameters())


@pytest.mark.parametrize("name", ["vit_b_16", "maxvit_t"])
def test_a_model_that_needs_the_image_size_gets_it(name: str) -> None:
    with torch.device("meta"):
        model = build_model(ModelConfig(name), 7, image_size=448)
        assert model(torch.empty(1, 3, 448, 448)).shape == (1, 7)
    with pytest.raises(ConfigError, match=rf"model\.name={name}: cannot take data\.image_size=225"):
        build_model(ModelConfig(name), 7, image_size=225)


def published(name: str) -> "OrderedDict[str, torch.Tensor]":
    """A state dict with the keys and shapes of the published file."""
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    state: OrderedDict[str, torch.Tensor] = torchvision.models.get_model(
        name, weights=None, **options
    ).state_dict()
    old = re.compile(r"(denselayer\d+\.(?:norm|conv))([12])\.")
    return OrderedDict((old.sub(r"\1.\2.", key), value) for key, value in state.items())


@pytest.mark.parametrize("name", ["densenet121", "squeezenet1_1", "googlenet"])
def test_published_weights_load_except_the_head(name: str, tmp_path: Path) -> None:
    state = published(name)
    torch.save(state, tmp_path / "published.pth")
    model = build_model(ModelConfig(name, weights=str(tmp_path / "published.pth")), 7)
    first = next(iter(state))
    assert torch.equal(model.state_dict()[first], state[first])


def other_content(kind: str) -> bytes:
    """The content of a file that holds no state dict."""
    if kind in ("cut short", "cut short, old format"):
        buffer = io.BytesIO()
        torch.save(
            {"a": torch.ones(1000)}, buffer, _use_new_zipfile_serialization="old" not in kind
        )
        return buffer.getvalue()[:2000]
    return {
        "no archive": b"PK\x03\x04 no archive",
        "text": b"no weights\n",
        "program": Path(sys.executable).read_bytes(),
    }[kind]


@pytest.mark.parametrize("kind", ["no archive", "text", "cut short", "cut short, old format"])
def test_the_error_names_a_file_without_weights(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(other_content(kind))
    with pytest.raises(ConfigError) as caught:
        build_model(ModelConfig(weights=str(path)), 7)
    assert str(caught.value).startswith(
        f"model.weights={path}: must be a state dict, as torch.save("
    )
    assert len(str(caught.value)) < len(str(path)) + 200


def test_a_program_of_torchscript_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """torch.load reads one, if asked to, and its state dict can be saved."""
    path = tmp_path / "weights.pt"
    path.write_bytes(other_content("program"))
    with pytest.raises(ConfigError, match=r"only tensors are read; .*save its state dict with"):
        build_model(ModelConfig(weights=str(path)), 7)


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


def test_weights_load_except_a_head_of_another_size(tmp_path: Path) -> None:
    source = torchvision.models.resnet18(num_classes=7)
    channel = tmp_path / "weights"
    channel.mkdir()
    torch.save(source.state_dict(), channel / "pretrained.pth")
    model = build_model(ModelConfig(weights="weights"), 3, tmp_path)
    built, saved = model.state_dict(), source.state_dict()
    assert all(torch.equal(built[key], saved[key]) for key in built if not key.startswith("fc."))
    assert built["fc.weight"].shape == (3, 512)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ModelConfig(name="resnet51"), "did you mean resnet50"),
        (ModelConfig(name="tests.own_models.no_such"), "no_such"),
        (ModelConfig(name="os.path.join.nothing"), "model.name=os.path.join.nothing"),
        (ModelConfig(weights="/no/such.pt"), "model.weights=/no/such.pt"),
        (
            ModelConfig(name="timm/resnet18d9"),
            r"model\.name=timm/resnet18d9: timm [\d.]+ has no such model or weights; did you mean",
        ),
        (
            ModelConfig(name="timm/resnet18.a1_in2k"),
            r"timm [\d.]+ has no such model or weights; did you mean resnet18\.a1_in1k\?",
        ),
        (
            ModelConfig(name="project.models.small_net", kwargs={"widht": 8}),
            r"model\.kwargs\.widht=8: no such argument; small_net takes width; did you mean width",
        ),
        (
            ModelConfig(name="project.models.smal_net"),
            r"project\.models has no smal_net; did you mean small_net\?",
        ),
        (
            ModelConfig(kwargs={"zero_init": True}),
            r"model\.name=resnet18: cannot take .*=\{zero_init:true\} .*unexpected keyword",
        ),
        (
            ModelConfig(name="timm/resnet18", kwargs={"drop_pat_rate": 0.1}),
            r"model\.name=timm/resnet18: cannot take .*unexpected keyword argument 'drop_pat_rate'",
        ),
        (
            ModelConfig(name="timm/resnet18", kwargs={"pretrained": True}),
            r"model\.kwargs\.pretrained=true: is set by the job; remove it",
        ),
        (
            ModelConfig(name="os.getcwd"),
            r"model\.kwargs=.*unexpected keyword argument 'num_classes'",
        ),
        (ModelConfig(name="builtins.dict"), r"must return a torch\.nn\.Module, not dict"),
    ],
)
def test_the_error_names_a_model_that_cannot_be_built(config: ModelConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(config, 3)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    torch.save(torchvision.models.resnet50(num_classes=3).state_dict(), tmp_path / "other.pt")
    with pytest.raises(ConfigError, match=r"model\.weights=.*other\.pt"):
        build_model(ModelConfig(weights=str(tmp_path / "other.pt")), 3)


# One small model of each kind: no image size, one that is fixed, a convolutional head, two heads.
TIMM = ("test_resnet", "test_vit", "test_byobnet", "deit_tiny_distilled_patch16_224")


@pytest.mark.parametrize("name", TIMM)
@pytest.mark.parametrize("kind", ["pth", "safetensors"])
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


def test_every_timm_model_with_a_fixed_image_size_takes_another() -> None:
    with torch.device("meta"):
        model = build_model(ModelConfig("timm/vit_tiny_patch16_224"), 7, image_size=448)
        assert model(torch.empty(1, 3, 448, 448)).shape == (1, 7)


def test_kwargs_reach_every_kind_of_model() -> None:
    def size(name: str, **kwargs: object) -> int:
        model = build_model(ModelConfig(name, kwargs=kwargs), 7)
        return sum(p.numel() for p in model.parameters())

    assert size("resnet18", width_per_group=64) == size("resnet18")
    assert size("resnet50", width_per_group=128) > size("resnet50")
    assert size("timm/test_vit", depth=3) > size("timm/test_vit", depth=2)
    assert size("project.models.small_net", width=64) > size("project.models.small_net")


def test_without_timm_the_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError) as caught:
        build_model(ModelConfig("timm/resnet18"), 7)
    assert str(caught.value) == (
        "model.name=timm/resnet18: needs the package timm: run `make setup EXTRAS=timm`, or build "
        "the image with `make image EXTRAS=timm`"
    )


@pytest.mark.parametrize("content", [b"", b"no tensors here", bytes(100), b"\xff" * 100])
def test_the_error_names_a_damaged_safetensors_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.weights=.* must be a safetensors file \("):
        build_model(ModelConfig(weights=str(path)), 7)
