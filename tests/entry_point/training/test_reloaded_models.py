"""A model of each kind is saved, loaded, resumed, started from and predicted with."""

import shutil
from pathlib import Path

import pytest
import torch

from entry_point.config.train_config import ModelConfig
from entry_point.model_folder import load_model
from entry_point.training.averaged_weights import AveragedWeights
from entry_point.training.checkpoints import Checkpoints, load_newest, load_state
from entry_point.training.models import build_model
from tests.entry_point.serving.served_model import CLASSES, write_model
from tests.entry_point.training.tasks.label_sources import CPU

# Old and new names of weights, layers with versions, positions, and heads of each form.
MODELS = (
    *("densenet121", "googlenet", "mnasnet0_5", "mobilenet_v3_small", "squeezenet1_1"),
    *("timm/test_byobnet", "timm/test_vit", "lraspp_mobilenet_v3_large"),
)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_each_kind_is_what_it_was_after_each_file(name: str, tmp_path: Path) -> None:
    size = 160 if name == "timm/test_vit" else 64
    settings = ["model.name=" + name, f"data.image_size={size}", f"data.resize={size}"]
    kind = "class"
    if name.startswith("lraspp"):
        kind = "targets"
        settings += ["data=masks", "task=segmentation"]
    torch.manual_seed(1)
    network = build_model(ModelConfig(name), 3, image_size=size)
    for buffer in network.buffers():  # not the initial ones, which a new model has, too
        if buffer.dtype.is_floating_point and buffer.dim() == 1:
            buffer.add_(0.01)
    network = network.eval()
    averages = AveragedWeights(network, 0.9)
    averages.update()
    checkpoints = Checkpoints(tmp_path, None, 0, writes=True)
    checkpoints.save({"learner": {"model": network.state_dict(), **averages.state()}}, 1)
    checkpoints.close()
    saved = load_newest(tmp_path)
    folder = write_model(tmp_path, *settings, kind=kind, network=network)
    model = load_model(folder, CPU)
    images = torch.randint(256, (1, 3, size, size), dtype=torch.uint8)
    pixels = model.answers.normalize(images)  # type: ignore[operator]
    with torch.inference_mode():
        expected = network(pixels).softmax(1)
    # Where the weights lie in memory decides the last bit of some processors' kernels.
    torch.testing.assert_close(model.predict(images), expected)
    assert_same(model.answers.network, network)  # type: ignore[arg-type]
    assert saved is not None
    resumed = build_model(ModelConfig(name), 3, image_size=size)
    load_state(resumed, saved["learner"]["model"])
    assert_same(resumed, network)
    started = ModelConfig(name, weights=str(folder / "model.safetensors"))
    assert_same(build_model(started, 3, image_size=size, names=CLASSES), network)
    shutil.rmtree(tmp_path)


def test_buffers_whose_elements_share_their_memory_are_loaded() -> None:
    name = "tests.own_models.grid_net"
    saved = build_model(ModelConfig(name), 3)
    saved.get_buffer("rows").add_(1)
    loaded = build_model(ModelConfig(name), 3)
    load_state(loaded, saved.state_dict())
    assert_same(loaded, saved)


def assert_same(one: torch.nn.Module, other: torch.nn.Module) -> None:
    state = other.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in one.state_dict().items())
