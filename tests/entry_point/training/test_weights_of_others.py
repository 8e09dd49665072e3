"""Weights in the files of other training programs: around them, before their names, of another
image size. Only tensors are taken, and nothing in a file runs."""

import argparse
import collections
import enum
import functools
import logging
import os
import pathlib
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision.models import resnet18

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import ModelConfig
from entry_point.training.models import build_model

TINY = "tests.own_models.tiny_net"


def tiny_state() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return build_model(ModelConfig(TINY), 3).state_dict()


def prefixed(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in state.items()}


def loaded(path: Path, content: object, **options: Any) -> dict[str, Tensor]:
    """What a model begins with, if `content` is what a program has saved."""
    torch.save(content, path, **options)
    torch.manual_seed(2)
    return build_model(ModelConfig(TINY, weights=str(path)), 3).state_dict()


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


class Phase(enum.Enum):
    FINE = "fine"


class Settings(dict[str, object]):
    """A dict with attributes, as many libraries have."""


class Points(list[int]):
    """A list of another class."""


class Slots:
    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 0.1


def settings() -> Settings:
    made = Settings(rate=0.1)
    made.path = pathlib.Path("x")  # type: ignore[attr-defined]
    return made


OBJECTS: dict[str, object] = {
    "Namespace": argparse.Namespace(lr=0.1, device=torch.device("cpu")),
    "partial": functools.partial(torch.optim.SGD, lr=0.1),
    "NumPy's number": np.float64(0.9),
    "NumPy's array": np.arange(3),
    "path": pathlib.Path("runs"),
    "enum": Phase.FINE,
    "defaultdict": collections.defaultdict(list, {"loss": [0.1]}),
    "deque": collections.deque([1, 2]),
    "dict of another class": settings(),
    "list of another class": Points([1, 2]),
    "slots": Slots(),
    "class": nn.ReLU,
    "function": tiny_state,
    "module": nn.Linear(2, 2),
    "optimizer": torch.optim.AdamW([nn.Parameter(torch.ones(2))]),
    "bytes": b"x",
    "random state": np.random.default_rng(0),
}


@pytest.mark.parametrize("what", OBJECTS)
def test_other_objects_in_a_file_are_skipped(what: str, tmp_path: Path) -> None:
    state = tiny_state()
    content = {"epoch": 3, "args": OBJECTS[what], "model": state, "more": [OBJECTS[what]]}
    assert_same(loaded(tmp_path / "a.pth", content), state)


@pytest.mark.parametrize("options", [{"_use_new_zipfile_serialization": False}, {}])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_they_are_skipped_in_each_format_of_torch(
    options: dict[str, bool], protocol: int, tmp_path: Path
) -> None:
    state = tiny_state()
    content = {"model": state, **OBJECTS}
    found = loaded(tmp_path / "a.pth", content, pickle_protocol=protocol, **options)
    assert_same(found, state)


class Reduced:
    """An object that its pickle makes by a call."""

    def __init__(self, call: object, *arguments: object) -> None:
        self.made = (call, arguments)

    def __reduce__(self) -> Any:
        return self.made

    def __call__(self) -> None:
        """pickle calls only what can be called."""


def test_nothing_in_a_file_runs(tmp_path: Path) -> None:
    state, proof = tiny_state(), tmp_path / "ran"
    calls = [
        Reduced(os.system, f"touch {proof}"),
        Reduced(eval, f"open({str(proof)!r}, 'w')"),
        Reduced(open, str(proof), "w"),
        Reduced(Reduced(getattr, "os", "system"), f"touch {proof}"),
        Reduced(pathlib.Path.touch, proof),
        Reduced(pickle.loads, pickle.dumps(Reduced(os.system, f"touch {proof}"))),
    ]
    for call in calls:
        assert_same(loaded(tmp_path / "a.pth", {"model": state, "args": call}), state)
    assert not proof.exists()


def test_no_state_reaches_what_rebuilds_tensors(tmp_path: Path) -> None:
    rebuild, state = torch._utils._rebuild_tensor_v2, tiny_state()
    path = tmp_path / "a.pth"
    torch.save({"args": argparse.Namespace(), "model": state}, path)
    # Behind the protocol's two bytes: the function, a state with slots, BUILD, POP.
    slots = b"ctorch._utils\n_rebuild_tensor_v2\nN}X\x0c\x00\x00\x00__defaults__)s\x86b0"
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, record in records.items():
            is_pickle = name.endswith("data.pkl")
            archive.writestr(name, record[:2] + slots + record[2:] if is_pickle else record)
    before = rebuild.__defaults__
    assert before
    assert_same(build_model(ModelConfig(TINY, weights=str(path)), 3).state_dict(), state)
    assert rebuild.__defaults__ == before


def nested(state: dict[str, Tensor]) -> dict[str, Any]:
    """What programs save, by name."""
    ema = {name: value + 1 for name, value in state.items()}
    return {
        "torchvision": {"model": state, "optimizer": {}, "args": argparse.Namespace()},
        "its averages": {"model_ema": {"n_averaged": torch.tensor(1), **prefixed("module.", ema)}}
        | {"model": state},
        "timm": {"arch": "x", "state_dict": state, "state_dict_ema": ema, "metric": np.float64(1)},
        "the tutorial": {"epoch": 1, "model_state_dict": state, "optimizer_state_dict": {}},
        "Lightning": {"state_dict": prefixed("net.", state) | {"loss.weight": torch.ones(3)}},
        "Lightning, compiled": {"state_dict": prefixed("model._orig_mod.", state)},
        "net": {"net": prefixed("module.", state), "acc": 90.0},
        "backbone": prefixed("backbone.", state),
        "DINO": {"student": prefixed("module.backbone.", ema)}
        | {"teacher": prefixed("backbone.", state)},
        "MoCo": prefixed("module.encoder_q.", state) | prefixed("module.encoder_k.", ema),
        "averages first": {"ema": ema, "model": state},
        "Composer": {"state": {"model": prefixed("module.", state), "optimizers": {}}},
        "beside numbers": {**state, "epoch": 3},
        "a compiled part": {name.replace(".", "._orig_mod."): v for name, v in state.items()},
    }


@pytest.mark.parametrize("program", nested({}))
def test_weights_are_found_where_programs_put_them(program: str, tmp_path: Path) -> None:
    state = tiny_state()
    assert_same(loaded(tmp_path / "a.pth", nested(state)[program]), state)


def test_averages_alone_are_taken(tmp_path: Path) -> None:
    state = tiny_state()
    content = {"model_ema": {"n_averaged": torch.tensor(1), **prefixed("module.", state)}}
    assert_same(loaded(tmp_path / "a.pth", content), state)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("its averages", "; taken from model, not from model_ema.module, which also fits"),
        (
            "DINO",
            "; taken from teacher.backbone, not from student.module.backbone, which also fits",
        ),
        ("the tutorial", ""),
    ],
)
def test_one_line_says_which_of_several_weights_are_taken(
    program: str, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "entry_point")
    loaded(tmp_path / "a.pth", nested(tiny_state())[program])
    assert caplog.messages == [f"weights from {tmp_path / 'a.pth'}{says}"]


def test_the_larger_of_two_models_is_not_taken_for_the_smaller(tmp_path: Path) -> None:
    small, large = tiny_state(), {name: v.repeat_interleave(2) for name, v in tiny_state().items()}
    content = {"teacher": large, "student": small}
    assert_same(loaded(tmp_path / "a.pth", content), small)


def test_an_encoder_without_a_head_loads_with_a_new_head(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of self-supervised training, whose projection is in the place of the head."""
    caplog.set_level(logging.INFO, "entry_point")
    state: dict[str, Tensor] = resnet18().state_dict()
    body = {name: value for name, value in state.items() if not name.startswith("fc.")}
    path = tmp_path / "a.pth"
    for projection in ({}, {"fc.0.weight": torch.ones(8, 512), "fc.2.weight": torch.ones(8, 8)}):
        torch.save({"state_dict": prefixed("module.encoder_q.", body | projection)}, path)
        model = build_model(ModelConfig(weights=str(path)), 3)
        assert torch.equal(model.state_dict()["conv1.weight"], state["conv1.weight"])
        assert caplog.messages[-1] == f"weights from {path}, except fc.weight, fc.bias"
    del body["layer1.0.conv1.weight"]
    torch.save(body, path)
    with pytest.raises(ConfigError, match=r"does not fit the model; missing \['layer1\.0\.conv1"):
        build_model(ModelConfig(weights=str(path)), 3)


@pytest.mark.parametrize("content", [resnet18(), {"model": resnet18(), "epoch": 1}])
@pytest.mark.parametrize("new_format", [True, False])
def test_a_whole_model_is_refused_by_its_name(
    content: object, new_format: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.pth"
    torch.save(content, path, _use_new_zipfile_serialization=new_format)
    message = (
        r"must be a state dict, as torch\.save\(model\.state_dict\(\), FILE\) writes it, not a "
    )
    with pytest.raises(
        ConfigError, match=message + r"pickled torchvision\.models\.resnet\.ResNet$"
    ):
        build_model(ModelConfig(weights=str(path)), 3)


@pytest.mark.filterwarnings("ignore")
def test_a_traced_model_is_refused(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), str(tmp_path / "a.pth"))
    with pytest.raises(ConfigError, match=r"must be a state dict, .* TorchScript"):
        build_model(ModelConfig(weights=str(tmp_path / "a.pth")), 3)


# -- position embeddings


@pytest.mark.parametrize(
    ("name", "key", "tokens"),
    [
        ("timm/test_vit", "pos_embed", 1),
        ("timm/deit_tiny_distilled_patch16_224", "pos_embed", 2),
        ("vit_b_16", "encoder.pos_embedding", 1),
    ],
)
def test_position_embeddings_of_another_image_size_are_resampled(
    name: str, key: str, tokens: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "entry_point")
    state = build_model(ModelConfig(name), 3, image_size=64).state_dict()
    ramp = torch.arange(4.0).repeat(4)  # from the left to the right
    state[key] = torch.zeros_like(state[key])
    state[key][0, tokens:] = ramp[:, None]
    state[key][0, :tokens] = 7
    path = tmp_path / "a.pth"
    torch.save(state, path)
    config = ModelConfig(name, weights=str(path))
    found = build_model(config, 3, image_size=128).state_dict()[key]
    assert (found[0, :tokens] == 7).all()
    grid = found[0, tokens:, 0].view(8, 8)
    torch.testing.assert_close(grid, grid[:1].expand(8, 8))
    assert (grid[0].diff() > 0).all() and abs(float(grid.mean()) - 1.5) < 1e-5
    assert caplog.messages[-1].endswith(f"; {key} is resampled from 4x4 to 8x8 patches")


def test_position_embeddings_of_another_width_are_refused(tmp_path: Path) -> None:
    state = build_model(ModelConfig("timm/test_vit"), 3, image_size=64).state_dict()
    state["pos_embed"] = state["pos_embed"][..., :32]
    torch.save(state, tmp_path / "a.pth")
    config = ModelConfig("timm/test_vit", weights=str(tmp_path / "a.pth"))
    with pytest.raises(ConfigError, match=r"pos_embed has shape \(1, 17, 32\)"):
        build_model(config, 3, image_size=128)


@pytest.mark.parametrize(
    ("other", "own"),
    [
        ("resnet34", "resnet18"),
        ("resnet18", "resnet34"),
        ("resnext50_32x4d", "resnet50"),
        ("convnext_atto", "convnext_femto"),
        ("test_efficientnet_ln", "test_efficientnet"),
    ],
)
def test_an_encoder_takes_no_other_architectures_weights(
    other: str, own: str, tmp_path: Path
) -> None:
    file = tmp_path / "other.pt"
    torch.save(timm.create_model(other, num_classes=4).state_dict(), file)
    encoder = ModelConfig(f"timm/{own}", {"features_only": True}, weights=str(file))
    with pytest.raises(ConfigError, match=r"^model\.weights=.*(does not fit|another model's)"):
        build_model(encoder, 3, image_size=64)


def test_an_encoder_takes_its_classifiers_weights_whatever_its_head(tmp_path: Path) -> None:
    state = timm.create_model("resnet18", num_classes=4).state_dict()
    state |= {"fc.0.weight": torch.ones(4, 4)}  # of a projection
    torch.save(prefixed("module.", state), file := tmp_path / "own.pt")
    kwargs = {"features_only": True, "out_indices": [1, 2, 3]}
    model = build_model(ModelConfig("timm/resnet18", kwargs, weights=str(file)), 3)
    for name, value in model.state_dict().items():
        if name.startswith("encoder.model."):
            assert torch.equal(value, state[name.removeprefix("encoder.model.")]), name


def test_weights_of_mnasnet_load_with_and_without_their_version(tmp_path: Path) -> None:
    state = build_model(ModelConfig("mnasnet0_5"), 3).state_dict()
    for number, content in enumerate((state, dict(state))):
        torch.save(content, file := tmp_path / f"{number}.pt")
        loaded_state = build_model(ModelConfig("mnasnet0_5", weights=str(file)), 3).state_dict()
        assert_same(loaded_state, state)
