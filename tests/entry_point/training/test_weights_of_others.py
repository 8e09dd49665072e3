"""Weights in the files of other training programs: around them, before their names, of another
image size. Only tensors are taken, and nothing in a file runs."""

import argparse
import functools
import logging
import os
import pathlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer, resnet18

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


def nested(state: dict[str, Tensor]) -> dict[str, Any]:
    """What programs save, by name."""
    return {
        "torchvision": {"model": state, "optimizer": {}, "args": argparse.Namespace(lr=0.1)},
        "timm": {"arch": "x", "state_dict": state, "args": argparse.Namespace(), "metric": 0.1},
        "the tutorial": {"epoch": 1, "model_state_dict": state, "optimizer_state_dict": {}},
        "Lightning": {"state_dict": prefixed("net.", state) | {"loss.weight": torch.ones(3)}},
        "Lightning, compiled": {"state_dict": prefixed("model._orig_mod.", state)},
        "net": {"net": prefixed("module.", state), "acc": 90.0},
        "backbone": prefixed("backbone.", state),
        "Composer": {"state": {"model": prefixed("module.", state), "optimizers": {}}},
        "averages": {"model_ema": {"n_averaged": torch.tensor(1), **prefixed("module.", state)}},
        "beside numbers": {**state, "epoch": 3},
        "a compiled part": {name.replace(".", "._orig_mod."): v for name, v in state.items()},
    }


@pytest.mark.parametrize("program", nested({}))
def test_weights_are_found_where_programs_put_them(
    program: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "entry_point")
    state = tiny_state()
    assert_same(loaded(tmp_path / "a.pth", nested(state)[program]), state)
    assert caplog.messages == [f"weights from {tmp_path / 'a.pth'}"]


def test_of_several_weights_the_first_are_taken_and_the_line_names_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "entry_point")
    state = tiny_state()
    averages = {name: value + 1 for name, value in state.items()}
    content = {"model": state, "model_ema": prefixed("module.", averages)}
    assert_same(loaded(path := tmp_path / "a.pth", content), state)
    assert caplog.messages == [
        f"weights from {path}; taken from model, not from model_ema.module, which also fits"
    ]


@pytest.mark.parametrize(
    ("content", "options", "name"),
    [
        (resnet18(), {}, "torchvision.models.resnet.ResNet"),
        ({"model": {}, "best": np.float64(0.9)}, {}, r"numpy.*scalar"),
        (
            {"model": {}, "build": functools.partial(print)},
            {"_use_new_zipfile_serialization": False},
            "functools.partial",
        ),
        (nn.Linear(2, 2), {"pickle_protocol": 5}, "object"),
    ],
)
def test_other_objects_in_a_file_are_refused_by_name_with_the_way_out(
    content: object, options: dict[str, Any], name: str, tmp_path: Path
) -> None:
    message = rf"model\.weights=.*a\.pth: holds a pickled {name}, .*torch\.save\(STATE_DICT,"
    with pytest.raises(ConfigError, match=message) as caught:
        loaded(tmp_path / "a.pth", content, **options)
    assert "\n" not in str(caught.value)


class Reduced:
    """An object that its pickle makes by a call."""

    def __init__(self, call: object, *arguments: object) -> None:
        self.made = (call, arguments)

    def __reduce__(self) -> Any:
        return self.made


def test_nothing_in_a_file_runs(tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    for call in (
        Reduced(os.system, f"touch {proof}"),
        Reduced(eval, f"open({str(proof)!r}, 'w')"),
        Reduced(pathlib.Path.touch, proof),
    ):
        with pytest.raises(ConfigError, match="holds a pickled"):
            loaded(tmp_path / "a.pth", {"model": tiny_state(), "args": call})
    assert not proof.exists()


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
        new = "fc.weight, fc.bias start from scratch: the file has none of this size"
        assert caplog.messages[-1] == f"weights from {path}; {new}"
    del body["layer1.0.conv1.weight"]
    torch.save(body, path)
    with pytest.raises(
        ConfigError, match=r'does not fit the model .*Missing key.*"layer1\.0\.conv1'
    ):
        build_model(ModelConfig(weights=str(path)), 3)


def small_vit(num_classes: int, image_size: int) -> nn.Module:
    return VisionTransformer(image_size, 16, 1, 2, 32, 64, num_classes=num_classes)


@pytest.mark.parametrize(
    ("name", "key"),
    [("timm/test_vit", "pos_embed"), (f"{__name__}.small_vit", "encoder.pos_embedding")],
)
def test_position_embeddings_of_another_image_size_are_resampled(
    name: str, key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "entry_point")
    small, large = ({} if "/" in name else {"image_size": size} for size in (64, 128))
    state = build_model(ModelConfig(name, small), 3, image_size=64).state_dict()
    ramp = torch.arange(4.0).repeat(4)  # from the left to the right
    state[key] = torch.zeros_like(state[key])
    state[key][0, 1:] = ramp[:, None]
    state[key][0, 0] = 7  # of the class
    path = tmp_path / "a.pth"
    torch.save(state, path)
    config = ModelConfig(name, large, weights=str(path))
    found = build_model(config, 3, image_size=128).state_dict()[key]
    assert (found[0, 0] == 7).all()
    grid = found[0, 1:, 0].view(8, 8)
    torch.testing.assert_close(grid, grid[:1].expand(8, 8))
    assert (grid[0].diff() > 0).all() and abs(float(grid.mean()) - 1.5) < 1e-5
    assert caplog.messages[-1].endswith(f"; {key} is resampled from 17 to 65 positions")


@pytest.mark.parametrize("found", [(1, 17, 32), (1, 16, 64)], ids=["width", "no square"])
def test_position_embeddings_of_another_kind_are_refused(
    found: tuple[int, ...], tmp_path: Path
) -> None:
    state = build_model(ModelConfig("timm/test_vit"), 3, image_size=64).state_dict()
    torch.save({**state, "pos_embed": torch.ones(found)}, tmp_path / "a.pth")
    config = ModelConfig("timm/test_vit", weights=str(tmp_path / "a.pth"))
    with pytest.raises(ConfigError, match=r"mismatch for pos_embed: .*use the data\.image_size"):
        build_model(config, 3, image_size=128)


@pytest.mark.parametrize(
    ("other", "own"),
    [("resnet10t", "resnet14t"), ("test_efficientnet_ln", "test_efficientnet")],
)
def test_an_encoder_takes_no_other_architectures_weights(
    other: str, own: str, tmp_path: Path
) -> None:
    file = tmp_path / "other.pt"
    torch.save(timm.create_model(other, num_classes=4).state_dict(), file)
    encoder = ModelConfig(f"timm/{own}", {"features_only": True}, weights=str(file))
    with pytest.raises(ConfigError, match=r"^model\.weights=.*does not fit"):
        build_model(encoder, 3, image_size=64)


def test_an_encoder_takes_its_classifiers_weights_whatever_its_head(tmp_path: Path) -> None:
    state = timm.create_model("resnet18", num_classes=4).state_dict()
    state |= {"fc.0.weight": torch.ones(4, 4)}  # of a projection
    torch.save(prefixed("module.", state), file := tmp_path / "own.pt")
    for indices in ([1, 2, 3, 4], [1, 2, 3]):  # the second leaves layer4 out
        kwargs = {"features_only": True, "out_indices": indices}
        model = build_model(ModelConfig("timm/resnet18", kwargs, weights=str(file)), 3)
        for name, value in model.state_dict().items():
            if name.startswith("encoder.model."):
                assert torch.equal(value, state[name.removeprefix("encoder.model.")]), name
