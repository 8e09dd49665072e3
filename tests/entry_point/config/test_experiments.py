"""Every recipe in configs/experiment/ composes, builds its model and trains."""

from pathlib import Path

import pytest
import torch

from entry_point.config.compose import CONFIGS
from entry_point.config.train_config import load_train_config
from entry_point.data.loader import build_loader, open_source
from entry_point.training.device_transform import DeviceTransform
from entry_point.training.devices import Devices
from entry_point.training.input import device_batches, loader_spec
from entry_point.training.learner import Learner
from entry_point.training.models.build_model import build_model
from entry_point.training.tasks.build_task import build_task

RECIPES = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))
ON_CPU = Devices(torch.device("cpu"), None)
SMALL = (
    *("data=folder", "data.demo.train_images=10", "pipeline.num_workers=1"),
    *("model.name=tests.own_models.tiny_net", "model.weights=null"),
    *("trainer.batch_size=8", "trainer.compile=false"),
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_a_small_model(recipe: str, photo_folder: Path) -> None:
    config, _ = load_train_config([f"experiment={recipe}", *SMALL, f"data.root={photo_folder}"])
    config.model.kwargs = {}  # of the recipe's model
    if not config.data.progressive:
        config.data.image_size = 48
    train = open_source(config.data, "train", Path())
    task = build_task(config, train, ON_CPU.device)
    loader = build_loader(train, loader_spec(config, ON_CPU, "train"))
    learner = Learner(config, ON_CPU, task, loader.steps_per_epoch, Path())
    transform = DeviceTransform(config.data, config.trainer.seed)
    for step, epoch in enumerate((0, config.trainer.epochs - 1)):
        prepare = lambda images, numbers, epoch=epoch: transform(images, numbers, epoch)  # noqa: E731
        batch = next(device_batches(loader.epoch(epoch), ON_CPU.device, prepare, True))
        assert batch.images.shape[-1] == config.data.train_size(epoch)
        assert torch.isfinite(learner.loss(batch.images, batch.labels, step))
        learner.update()
    loader.close()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipes_model_takes_the_arguments_that_it_gets(recipe: str) -> None:
    config, _ = load_train_config([f"experiment={recipe}", "data.root=x", "model.weights=null"])
    with torch.device("meta"):
        model = build_model(config.model, 10, Path(), config.data.image_size)
    assert sum(weight.numel() for weight in model.parameters()) > 100_000


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_names_its_source_and_target_and_that_it_is_untrained(recipe: str) -> None:
    head = (CONFIGS / "experiment" / f"{recipe}.yaml").read_text().split("defaults:")[0]
    if "ImageNet-1k" in head:
        assert "Target: " in head and "%" in head and f"experiment={recipe}" in head
