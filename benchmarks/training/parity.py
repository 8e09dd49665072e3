"""Whether a recipe trains here as it does in a loop written torchvision's way.

Writes docs/results/train-parity.md. Real labelled data of which a small network classifies 60 to
90 %: the digits of scikit-learn as JPEGs. The same model, recipe and seeds in both loops, which
share no code and draw other numbers, so that their spread is that of seeds. With `before=DIR`, a
checkout of an earlier commit is a third loop.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from PIL import Image
from sklearn.datasets import load_digits

from benchmarks import measure

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (0, 1, 2)
EPOCHS, TRAIN, VAL = 20, 400, 1000
HERE, TORCHVISION, BEFORE = "this template", "torchvision's way", "before"
PLAIN = (
    "data=folder data.image_size=32 data.resize=36 data.scale=[0.35,1.0] optim.lr=0.1 "
    "model.name=project.models.small_net optim.warmup_epochs=2 optim.weight_decay=5e-5 "
    "optim.ema_decay=0.9 trainer.batch_size=50 trainer.report=false loggers=[]"
).split()
FULL = (
    "data.repeats=4 augment.name=trivial augment.kwargs.interpolation=bilinear augment.erase=0.1 "
    "optim.mixup_alpha=0.2 optim.cutmix_alpha=1.0"
).split()
RECIPES = {
    "crops and flips": ([], []),
    "all of resnet50_torchvision": (FULL, ["--repeats=4", "--augment", "--mix"]),
}
"""Recipe -> its overrides here and its options there, beside those of every run."""


@dataclass(frozen=True)
class Run:
    """Validation accuracy after each epoch."""

    recipe: str
    loop: str
    raw: list[float]
    """Empty if a checkout does not log it."""
    averaged: list[float]


def write_digits(folder: Path) -> None:
    """Write the digits as 64-pixel JPEGs, in class folders of two splits."""
    digits = load_digits()
    for place, number in enumerate(np.random.default_rng(0).permutation(len(digits.target))):
        if place == TRAIN + VAL:
            break
        split = "train" if place < TRAIN else "val"
        file = folder / split / str(digits.target[number]) / f"{place:05d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray((digits.images[number] * (255 / 16)).astype(np.uint8))
        image.resize((64, 64), Image.Resampling.BICUBIC).convert("RGB").save(file, quality=92)


def job(recipe: str, data: Path, seed: int, checkout: Path, loop: str) -> Run:
    """A training job of the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "entry_point.container", "train", *PLAIN]
        command += [*RECIPES[recipe][0], f"data.root={data}"]
        command += [f"trainer.epochs={EPOCHS}", f"trainer.seed={seed}"]
        subprocess.run(
            command,
            cwd=checkout,
            env={**os.environ, "ML_ROOT": folder},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        lines = (Path(folder) / "output" / "data" / "metrics.jsonl").read_text().splitlines()
    records = [record for line in lines if "val_accuracy" in (record := json.loads(line))]
    raw = [record["val_accuracy_raw"] for record in records if "val_accuracy_raw" in record]
    return Run(recipe, loop, raw, [record["val_accuracy"] for record in records])


def reference(recipe: str, data: Path, seed: int) -> Run:
    """The same in torchvision's way."""
    command = [sys.executable, "-m", "benchmarks.training.torchvision_loop", str(data)]
    command += [*RECIPES[recipe][1], f"--seed={seed}", f"--epochs={EPOCHS}"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    records = [json.loads(line) for line in output.splitlines()]
    raw, averaged = ([record[key] for record in records] for key in ("raw", "averaged"))
    return Run(recipe, TORCHVISION, raw, averaged)


DEALT = """
import json
import numpy as np
from entry_point.data.plan.balance import split_repeats
from entry_point.data.plan.order import EpochPlan
found = []
for ranks in (1, 8):
    plan = EpochPlan(128 * 8 * 4, 128, 0, True, 0, ranks, repeats=4)
    images = split_repeats(next(plan.batches(0)))[0]
    found += [len(set(images.tolist())), 100 * float(np.mean(images == np.roll(images, 1)))]
print(json.dumps(found))
"""
"""Images in a batch of 128 with 4 repeats, and percent blended with themselves; 1 and 8 ranks."""


def dealt(checkout: Path) -> list[float]:
    command = [sys.executable, "-c", DEALT]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def dealt_by_ra_sampler() -> list[float]:
    """The same by RASampler of references/classification and the roll of v2.MixUp."""
    found = []
    for ranks in (1, 8):
        images = np.repeat(np.arange(128 * 8), 4)[0::ranks][:128]
        found += [len(set(images.tolist())), 100 * float(np.mean(images == np.roll(images, 1)))]
    return found


def summary(curves: Sequence[Sequence[float]]) -> str:
    """Percent after the last epoch: the mean over seeds, and their range."""
    last = [100 * curve[-1] for curve in curves if curve]
    if not last:
        return "not logged"
    return f"{statistics.mean(last):.1f} ({min(last):.1f} to {max(last):.1f})"


def plot(runs: Sequence[Run], loops: Sequence[str]) -> None:
    """Write the curves of raw weights: the mean over seeds, and their range as a band."""
    figure, panels = plt.subplots(1, len(RECIPES), figsize=(11, 4), sharey=True)
    epochs = range(1, EPOCHS + 1)
    for panel, recipe in zip(panels, RECIPES, strict=True):
        for loop in loops:
            curves = [run.raw for run in runs if (run.recipe, run.loop) == (recipe, loop)]
            values = 100 * np.array(curves)
            if not values.size:
                continue
            shade = measure.color("this" if loop == HERE else "torchvision")
            panel.plot(epochs, values.mean(0), color=shade, label=loop)
            panel.fill_between(epochs, values.min(0), values.max(0), color=shade, alpha=0.2)
        panel.set(title=recipe, xlabel="epoch")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"validation accuracy (%), {len(SEEDS)} seeds")
    panels[0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    measure.PLOTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(measure.PLOTS / "train-parity.png", dpi=90)
    plt.close(figure)


def main(before: Path | None) -> None:
    checkouts = {HERE: ROOT, **({} if before is None else {BEFORE: before})}
    loops = [HERE, TORCHVISION, *([] if before is None else [BEFORE])]
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_digits(data)
        for recipe in RECIPES:
            for seed in SEEDS:
                runs.append(reference(recipe, data, seed))
                runs += [job(recipe, data, seed, each, loop) for loop, each in checkouts.items()]
    rows = []
    for recipe in RECIPES:
        for loop in loops:
            of_loop = [run for run in runs if (run.recipe, run.loop) == (recipe, loop)]
            curves = ([run.raw for run in of_loop], [run.averaged for run in of_loop])
            rows.append((recipe, loop, *map(summary, curves)))
    batches = {name: dealt(checkout) for name, checkout in checkouts.items()}
    batches[TORCHVISION] = dealt_by_ra_sampler()
    plot(runs, loops)
    text = measure.write(
        "train-parity",
        "train",
        "Recipes here and in a loop written torchvision's way",
        f"scikit-learn's digits as JPEGs, {TRAIN} to train on and {VAL} to validate; a network of "
        f"three convolutions with batch normalization; {EPOCHS} epochs; seeds "
        f"{', '.join(map(str, SEEDS))}. `benchmarks/training/torchvision_loop.py` shares no code "
        "with the template: Pillow, ImageFolder, transforms v2, RASampler, torch's schedulers and "
        "AveragedModel. The second recipe adds repeated augmentation, TrivialAugment, random "
        "erasing, MixUp and CutMix. The averages of torchvision's way also average batch "
        "statistics; those here are measured for the averaged weights. The curves and bands are "
        "mean and range over the seeds, of the raw weights.",
        [
            measure.table(
                ["recipe", "loop", "accuracy, raw weights (%)", "averaged weights (%)"], rows
            ),
            "A batch of 128 with `data.repeats=4`, and how many of its images MixUp or CutMix "
            "blends with themselves:\n\n"
            + measure.table(
                [
                    "",
                    *("images, 1 rank", "with themselves (%)"),
                    *("images, 8 ranks", "with themselves (%)"),
                ],
                [(loop, *batches[loop]) for loop in loops],
            ),
        ],
        ["torchvision", "scikit-learn"],
    )
    sys.stdout.write(text)


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    main(Path(given["before"]).resolve() if "before" in given else None)
