"""Whether a recipe trains here as it does in a loop written torchvision's way.

Writes docs/results/train-parity.md. Real labelled data of which a small network classifies 60 to
90 %: the digits of scikit-learn as JPEGs. The same model, recipe and seeds in both loops, which
share no code and draw other numbers, so that their spread is that of seeds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from timm.data.auto_augment import rand_augment_transform

from benchmarks import measure
from custom_op.augment_ops import NUMBERS
from entry_point.config.train_config import load_train_config
from entry_point.data.plan.order import EpochPlan
from entry_point.data.plan.policies import build_augmenter
from entry_point.data.plan.samples import Samples, split_repeats

SEEDS = (0, 1, 2)
VAL = 1000
HERE, TORCHVISION = "this template", "torchvision's way"
NEIGHBORS = "torchvision's way, repeats blended with themselves"
LOOPS = (HERE, TORCHVISION, NEIGHBORS)
PLAIN = (
    "data=folder data.image_size=32 data.resize=36 data.scale=[0.35,1.0] optim.lr=0.1 "
    "model.name=project.models.small_net optim.warmup_epochs=2 optim.weight_decay=5e-5 "
    "trainer.batch_size=50 trainer.report=false loggers=[]"
).split()
FULL = (
    "data.repeats=4 augment.name=trivial augment.kwargs.interpolation=bilinear augment.erase=0.1 "
    "optim.mixup_alpha=0.2 optim.cutmix_alpha=1.0"
).split()

METHOD = (
    f"scikit-learn's digits as JPEGs, 400 to train on (150 in the short run) and {VAL} to "
    "validate; a network of three convolutions with batch normalization; 20 epochs (30 with "
    f"all of the recipe, 10 in the short run); seeds {', '.join(map(str, SEEDS))}. "
    "`benchmarks/training/torchvision_loop.py` shares no code with the template: Pillow, "
    "ImageFolder, transforms v2, RASampler, torch's schedulers and AveragedModel. The second "
    "recipe adds repeated augmentation, TrivialAugment, random erasing, MixUp and CutMix. On "
    "one rank, RASampler makes an image's repeats neighbors, which v2.MixUp and v2.CutMix then "
    "blend with themselves: a weaker augmentation than on eight ranks. torchvision's way "
    "therefore shuffles each batch here, and is also shown without. The averages of "
    "torchvision's way also average batch statistics; those here are measured for the averaged "
    "weights. The curves and bands are mean and range over the seeds, of the raw weights."
)


@dataclass(frozen=True)
class Recipe:
    """Settings of a run, besides PLAIN here and the defaults of Options in torchvision_loop."""

    name: str
    images: int
    epochs: int
    ema_decay: float
    overrides: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


ALL = {"repeats": 4, "augment": True, "mix": True, "apart": True}
RECIPES = (
    Recipe("crops and flips", 400, 20, 0.9),
    Recipe("all of resnet50_torchvision", 400, 30, 0.9, tuple(FULL), ALL),
    Recipe("a short run, long averages", 150, 10, 0.99),
)


@dataclass(frozen=True)
class Run:
    """Validation accuracy after each epoch."""

    recipe: Recipe
    loop: str
    raw: list[float]
    averaged: list[float]


def write_digits(folder: Path, images: int) -> None:
    """Write digits as 64-pixel JPEGs, in class folders of two splits."""
    digits = load_digits()
    for place, number in enumerate(np.random.default_rng(0).permutation(len(digits.target))):
        if place == images + VAL:
            break
        split = "train" if place < images else "val"
        file = folder / split / str(digits.target[number]) / f"{place:05d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray((digits.images[number] * (255 / 16)).astype(np.uint8))
        image.resize((64, 64), Image.Resampling.BICUBIC).convert("RGB").save(file, quality=92)


def job(recipe: Recipe, data: Path, seed: int) -> Run:
    """Returns two training jobs: averaging does not change the weights that train."""
    raw, averaged = (accuracy(recipe, data, seed, d) for d in ("null", str(recipe.ema_decay)))
    return Run(recipe, HERE, raw, averaged)


def accuracy(recipe: Recipe, data: Path, seed: int, decay: str) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "entry_point", "train", *PLAIN]
        command += [*recipe.overrides, f"data.root={data}", f"optim.ema_decay={decay}"]
        command += [f"trainer.epochs={recipe.epochs}", f"trainer.seed={seed}"]
        environment = {**os.environ, "ML_ROOT": folder}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        lines = (Path(folder) / "output" / "data" / "metrics.jsonl").read_text().splitlines()
    records = map(json.loads, lines)
    return [record["val_accuracy"] for record in records if "val_accuracy" in record]


def reference(recipe: Recipe, data: Path, seed: int, loop: str) -> Run:
    """Returns the same in torchvision's way."""
    options = {"seed": seed, "epochs": recipe.epochs, "ema_decay": recipe.ema_decay}
    options |= recipe.options
    if loop == NEIGHBORS:
        options["apart"] = False
    command = [sys.executable, "-m", "benchmarks.training.torchvision_loop", str(data)]
    command.append(json.dumps(options))
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    records = [json.loads(line) for line in output.splitlines()]
    raw, averaged = ([record[key] for record in records] for key in ("raw", "averaged"))
    return Run(recipe, loop, raw, averaged)


def here(ranks: int) -> NDArray[np.int64]:
    """Returns the images of a batch of 128 with 4 repeats, on the first of the ranks."""
    plan = EpochPlan(128 * 8 * 4, 128, 0, True, 0, ranks, repeats=4)
    return split_repeats(next(plan.batches(0)))[0]


def by_ra_sampler(ranks: int) -> NDArray[np.int64]:
    """Returns the same by RASampler of references/classification."""
    return np.repeat(np.arange(128 * 8), 4)[0::ranks][:128]


def dealt(batch: Callable[[int], NDArray[np.int64]]) -> list[float]:
    """Returns how many images a batch has, and how many percent the roll of v2.MixUp blends with
    themselves; of 1 and of 8 ranks."""
    found: list[float] = []
    for images in map(batch, (1, 8)):
        found += [len(set(images.tolist())), 100 * float(np.mean(images == np.roll(images, 1)))]
    return found


def rotated() -> float:
    """Returns the median rotation in degrees that experiment=deit_small draws."""
    config, _ = load_train_config(["experiment=deit_small", "data.root=x", "augment.erase=0"])
    augmenter = build_augmenter(config.augment, config.data.normalization[0])
    assert augmenter is not None
    table = augmenter.table(0, Samples.of(0, np.arange(20000)), 224).reshape(-1, 8)
    return float(np.median(np.abs(table[table[:, 0] == NUMBERS["rotate"], 1])))


def rotated_by_timm() -> float:
    """Returns the same by timm's `rand-m9-mstd0.5-inc1`, DeiT's default."""
    policy = rand_augment_transform("rand-m9-mstd0.5-inc1", {})
    (rotate,) = (op for op in policy.ops if op.name == "Rotate")
    rotate.prob, drawn = 1.0, []
    rotate.aug_fn = lambda _image, degrees, **_: drawn.append(abs(degrees))
    for _ in range(20000):
        rotate(None)
    return statistics.median(drawn)


def summary(curves: Sequence[Sequence[float]]) -> str:
    """Percent after the last epoch: the mean over seeds, and their range."""
    last = [100 * curve[-1] for curve in curves]
    return f"{statistics.mean(last):.1f} ({min(last):.1f} to {max(last):.1f})"


def plot(runs: Sequence[Run]) -> None:
    """Write the curves of raw weights: the mean over seeds, and their range as a band."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    for panel, recipe in zip(panels, RECIPES[:2], strict=True):
        epochs = range(1, recipe.epochs + 1)
        for loop in LOOPS:
            curves = [run.raw for run in runs if (run.recipe, run.loop) == (recipe, loop)]
            values = 100 * np.array(curves)
            if not values.size:
                continue
            shade = measure.color("this" if loop == HERE else "torchvision")
            dashes = ":" if loop == NEIGHBORS else "-"
            panel.plot(epochs, values.mean(0), dashes, color=shade, label=loop)
            panel.fill_between(epochs, values.min(0), values.max(0), color=shade, alpha=0.2)
        panel.set(title=recipe.name, xlabel="epoch")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"validation accuracy (%), {len(SEEDS)} seeds")
    panels[1].legend(frameon=False, loc="upper left")
    figure.tight_layout()
    measure.PLOTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(measure.PLOTS / "train-parity.png", dpi=90)
    plt.close(figure)


def main() -> None:
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        for recipe in RECIPES:
            data = Path(folder) / str(recipe.images)
            write_digits(data, recipe.images)
            for seed in SEEDS:
                runs.append(reference(recipe, data, seed, TORCHVISION))
                if "apart" in recipe.options:
                    runs.append(reference(recipe, data, seed, NEIGHBORS))
                runs.append(job(recipe, data, seed))
    plot(runs)
    write_page(runs)


def write_page(runs: Sequence[Run]) -> None:
    rows = []
    for recipe in RECIPES:
        for loop in LOOPS:
            some = [run for run in runs if (run.recipe, run.loop) == (recipe, loop)]
            if some:
                curves = ([run.raw for run in some], [run.averaged for run in some])
                rows.append((recipe.name, loop, *map(summary, curves)))
    batches = {HERE: dealt(here), "RASampler": dealt(by_ra_sampler)}
    rotations = {HERE: rotated(), "timm's rand-m9-mstd0.5-inc1": rotated_by_timm()}
    accuracies = ["recipe", "loop", "accuracy, raw weights (%)", "averaged weights (%)"]
    blended = "with themselves (%)"
    header = ["", "images, 1 rank", blended, "images, 8 ranks", blended]
    tables = [
        measure.table(accuracies, rows),
        "A batch of 128 with `data.repeats=4`, and how many of its images MixUp or CutMix blends "
        "with themselves:",
        measure.table(header, [(name, *found) for name, found in batches.items()]),
        "The median rotation that `experiment=deit_small` draws:",
        measure.table(["", "degrees"], [*rotations.items()]),
    ]
    title = "Recipes here and in a loop written torchvision's way"
    packages = ["torchvision", "timm", "scikit-learn"]
    measure.write("train-parity", "train", title, METHOD, tables, packages)


if __name__ == "__main__":
    main()
