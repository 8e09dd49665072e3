"""Every recipe in configs/experiment/ composes, builds its model and trains."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch

from entry_point.config.compose import CONFIGS
from entry_point.config.train_config import load_train_config
from entry_point.data.loader import build_loader, open_source
from entry_point.job.devices import Devices
from entry_point.training.input import device_batches, loader_spec
from entry_point.training.learner import Learner
from entry_point.training.models import Normalize, build_model
from entry_point.training.tasks.build_task import build_task
from tests import forkserver
from tests.entry_point.training.training_jobs import read_records

RECIPES = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))
ON_CPU = Devices(torch.device("cpu"), None)
SMALL = (
    *("data=folder", "~data.kwargs", "pipeline.num_workers=1"),
    *("model.name=tests.own_models.tiny_net", "model.weights=null"),
    "trainer.batch_size=8",
)
COMPILED = {
    "deit_small", "imagefolder_resnet50", "resnet50_fast16", "resnet50_fast88",
    "resnet50_torchvision", "vit_small",
}  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_a_small_model_compiled_once_for_each_size(
    recipe: str, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=keep))
    config, _ = load_train_config([f"experiment={recipe}", *SMALL, f"data.root={photo_folder}"])
    config.model.kwargs = {}  # of the recipe's model
    if not config.data.progressive:
        config.data.image_size = 48
    train = open_source(config.data, "train", Path())
    task = build_task(config, train, ON_CPU.device)
    loader = build_loader(train, loader_spec(config, ON_CPU, "train"))
    learner = Learner(config, ON_CPU, task, loader.steps_per_epoch, Path())
    normalize = Normalize(*config.data.normalization)
    for step, epoch in enumerate((0, config.trainer.epochs - 1)):
        batch = next(device_batches(loader.epoch(epoch), ON_CPU.device, normalize))
        assert batch.images.shape[-1] == config.data.train_size(epoch)
        assert torch.isfinite(learner.loss(batch.images, batch.labels, step))
        learner.update()
    loader.close()
    sizes = {size for _, size in config.data.progressive} or {config.data.image_size}
    assert len(graphs) == (len(sizes) if recipe in COMPILED else 0)


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


# The values of each source that have a setting here: training scripts and configs as published.
FFCV: dict[str, Any] = {
    "optim.name": "sgd", "optim.lr": 1.7, "optim.kwargs": {"momentum": 0.9},
    "optim.weight_decay": 1e-4, "optim.warmup_epochs": 2, "task.label_smoothing": 0.1,
    "trainer.batch_size": 8 * 512, "data.scale": [0.08, 1.0], "data.image_size": 256,
    "data.resize": 293, "augment.name": None,
}  # fmt: skip
SOURCES: dict[str, dict[str, Any]] = {
    "imagefolder_resnet50": {
        "optim.name": "sgd", "optim.lr": 0.1, "optim.kwargs": {"momentum": 0.9},
        "optim.weight_decay": 1e-4, "optim.groups": {"*": {"weight_decay": 1e-4}},
        "optim.schedule": "step",
        "optim.warmup_epochs": 0, "task.label_smoothing": 0, "trainer.epochs": 90,
        "trainer.batch_size": 8 * 32, "data.image_size": 224, "data.resize": 256,
    },
    "resnet50_torchvision": {
        "optim.name": "sgd", "optim.lr": 0.5, "optim.kwargs": {"momentum": 0.9},
        "optim.weight_decay": 2e-5, "optim.schedule": "cosine", "optim.warmup_epochs": 5,
        "optim.mixup_alpha": 0.2, "optim.cutmix_alpha": 1.0, "task.label_smoothing": 0.1,
        # 0.99998 for each 32nd step and one epoch, scaled as its train.py scales it.
        "optim.ema_decay": round((1 - (1 - 0.99998) * 1024 * 32 / 600) ** (1 / 32), 6),
        "augment.name": "trivial", "augment.kwargs": {"interpolation": "bilinear"},
        "augment.erase": 0.1, "data.repeats": 4, "data.progressive": [[0, 176]],
        "data.image_size": 224,
        "data.resize": 232, "trainer.epochs": 600, "trainer.batch_size": 8 * 128,
    },
    "resnet50_fast16": {
        **FFCV, "trainer.epochs": 16, "data.progressive": [[0, 160], [12, 192]],
    },
    "resnet50_fast88": {
        **FFCV, "trainer.epochs": 88, "data.progressive": [[0, 160], [71, 192]],
    },
    "deit_small": {
        "model.kwargs": {"drop_path_rate": 0.1}, "optim.name": "adamw",
        "optim.lr": 5e-4 * 1024 / 512, "optim.weight_decay": 0.05,
        "optim.schedule": "cosine", "optim.warmup_epochs": 5, "optim.clip_norm": None,
        "optim.mixup_alpha": 0.8, "optim.cutmix_alpha": 1.0, "task.label_smoothing": 0.1,
        "augment.erase": 0.25, "data.repeats": 3, "data.image_size": 224, "data.resize": 256,
        "trainer.epochs": 300, "trainer.batch_size": 1024,
    },
    "vit_small": {
        "model.kwargs": {
            "class_token": False, "global_pool": "avg", "fc_norm": False, "weight_init": "jax",
            "act_layer": "gelu_tanh",
        },
        "optim.name": "adamw", "optim.lr": 1e-3,
        # Its decay of 1e-4 is not multiplied by the learning rate.
        "optim.weight_decay": 1e-4 / 1e-3, "optim.schedule": "cosine", "optim.clip_norm": 1.0,
        "optim.warmup_epochs": 8, "optim.mixup_alpha": 0.2, "task.label_smoothing": 0,
        "augment.erase": 0, "data.mean": [0.5] * 3, "data.std": [0.5] * 3,
        "data.scale": [0.05, 1.0], "data.ratio": [0.75, 1.33], "data.image_size": 224,
        "data.resize": 256, "trainer.epochs": 90, "trainer.batch_size": 1024,
    },
    "simclr": {
        "data.views": 2, "data.scale": [0.08, 1.0],
        "augment.name": "simclr", "augment.kwargs": {}, "optim.warmup_epochs": 10,
        "optim.kwargs": {"momentum": 0.9},
    },
}  # fmt: skip
# What has no setting, or another value here: the source's value, as the header gives it.
DIFFERENCES = {
    "imagefolder_resnet50": ("(fp32)", "(kept: 5005"),
    "resnet50_torchvision": (
        *("32nd", "0.99998", "(copies", "(averaged)", "0.01 of it", "(2e-5)", "(fp32)"),
    ),
    "resnet50_fast16": ("500 pixels", "INTER_AREA", "line", "BlurPool", "(1e-4:", "flip", "fp16"),
    "resnet50_fast88": ("500 pixels", "INTER_AREA", "line", "BlurPool", "(1e-4:", "flip", "fp16"),
    "deit_small": ("1e-5", "1e-6", "bicubic", "noise", "1/3", "3.33", "fp16", "0.99996"),
    "vit_small": ("sincos2d", "tanh", "Cutout", "area", "99 %", "run on", "bfloat16"),
    "simclr": (
        *("LARS", "4.8", "1e-6", "4096", "1000", "batch normalization", "bicubic", "(evenly)"),
        *("HSV", "(black)", "(from 0 to 1)", "run on"),
    ),
}


@pytest.mark.parametrize("recipe", SOURCES)
def test_a_recipe_has_the_values_of_its_source(recipe: str) -> None:
    config, _ = load_train_config([f"experiment={recipe}", "data.root=x"])
    for key, value in SOURCES[recipe].items():
        found = attrgetter(key)(config)
        assert found == (pytest.approx(value) if isinstance(value, float) else value), key


@pytest.mark.parametrize("recipe", DIFFERENCES)
def test_a_recipe_names_the_values_of_its_source_that_it_does_not_have(recipe: str) -> None:
    text = (CONFIGS / "experiment" / f"{recipe}.yaml").read_text().split("defaults:")[0]
    head = " ".join(text.replace("\n#", " ").split())
    _, differences = head.split("source's values in parentheses")
    assert not [value for value in DIFFERENCES[recipe] if value not in differences]


def test_the_loss_of_the_debug_recipe_falls(tmp_path: Path) -> None:
    few = ["data.kwargs.train_images=16", "data.kwargs.val_images=10", "trainer.report=false"]
    steps = ["trainer.epochs=6", "trainer.evaluate_every_epochs=6", "trainer.log_every_steps=1"]
    alone = ["pipeline=pillow", "pipeline.num_workers=0"]
    done = forkserver.start(
        ["-m", "entry_point.train", "experiment=debug", *few, *steps, *alone],
        tmp_path / "log",
        environment={"ML_ROOT": str(tmp_path), "DEMO_DATA": str(tmp_path / "demo")},
    )
    output, _ = done.communicate()
    assert done.returncode == 0, output
    losses = [record["loss"] for record in read_records(tmp_path) if "loss" in record]
    assert losses[-1] < 0.7 * losses[0]
