"""A model of each family is saved, loaded, resumed, started from and predicted with."""

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
from tests.entry_point.training.test_models import SMALLEST

OF_SAME_CLASSES = {"efficientnet_v2_s", "resnext50_32x4d", "vgg11", "wide_resnet50_2"}
"""Their layers are those of other models here; VGG's half a gigabyte is plain, as AlexNet's."""
FAMILIES = (
    *(name for name in SMALLEST if name not in OF_SAME_CLASSES),
    *("timm/test_resnet", "timm/test_vit", "timm/test_convnext", "timm/test_efficientnet"),
    *("timm/test_mambaout", "timm/test_byobnet", "timm/mnasnet_small"),
)
OF_SEGMENTATION = (
    "lraspp_mobilenet_v3_large",
    "deeplabv3_mobilenet_v3_large",
    "fcn_resnet50",
)
SIZES = {"maxvit_t": 224, "inception_v3": 80, "timm/test_vit": 160}


@pytest.mark.parametrize("name", [*FAMILIES, *OF_SEGMENTATION])
def test_a_model_of_each_family_is_what_it_was_after_each_file(name: str, tmp_path: Path) -> None:
    size = SIZES.get(name, 64)
    settings = ["model.name=" + name, f"data.image_size={size}", f"data.resize={size}"]
    kind = "class"
    if name in OF_SEGMENTATION:
        kind = "targets"
        settings += ["data=masks", "task=segmentation"]
    torch.manual_seed(1)
    network = build_model(ModelConfig(name), 3, image_size=size)
    for buffer in network.buffers():  # not the initial ones, which a new model has, too
        if buffer.dtype.is_floating_point and buffer.dim() == 1:
            buffer.add_(0.01)
    network = network.eval()
    state = network.state_dict()
    checkpoints = Checkpoints(tmp_path, None, 0, writes=True)
    averages = AveragedWeights(network, 0.9)
    averages.update()
    checkpoints.save({"learner": {"model": state, **averages.state()}}, 1)
    checkpoints.close()
    saved = load_newest(tmp_path)
    folder = write_model(tmp_path, *settings, kind=kind, network=network)
    try:
        model = load_model(folder, CPU)
        images = torch.randint(256, (1, 3, size, size), dtype=torch.uint8)
        pixels = model.answers.normalize(images)  # type: ignore[operator]
        with torch.inference_mode():
            expected = network(pixels).softmax(1)
        # Where the weights lie in memory decides the last bit of some processors' kernels.
        torch.testing.assert_close(model.predict(images), expected)
        assert_same(model.answers.network, network)  # type: ignore[arg-type]
        assert saved is not None
        started = ModelConfig(name, weights=str(folder / "model.safetensors"))
        load_state(
            other := build_model(ModelConfig(name), 3, image_size=size), saved["learner"]["model"]
        )
        assert_same(other, network)
        assert_same(build_model(started, 3, image_size=size, names=CLASSES), network)
    finally:
        shutil.rmtree(tmp_path)


def assert_same(one: torch.nn.Module, other: torch.nn.Module) -> None:
    state = other.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in one.state_dict().items())
