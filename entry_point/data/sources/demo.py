"""The demo dataset: generated once, complete or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock

from entry_point.config.data_config import DemoConfig
from entry_point.data.errors import DataError
from entry_point.data.progress_bar import in_threads
from entry_point.data.sources.demo_images import PATTERNS, draw_jpeg

RECIPE = "recipe.json"
_RECIPE_VERSION = 1


def ensure_demo(root: Path, demo: DemoConfig) -> None:
    """Make sure that `root` holds the dataset that `demo` describes. Raises DataError.

    One process generates it in a hidden folder beside `root`, which is renamed when complete; other
    processes wait. The next call removes what a killed one left.
    """
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(root.parent / f".{root.name}.lock"):
            if not root.is_dir():
                _generate(root, demo)
    _require_recipe(root, demo)


def _recipe(demo: DemoConfig) -> dict[str, int]:
    return {"version": _RECIPE_VERSION, **asdict(demo)}


def _require_recipe(root: Path, demo: DemoConfig) -> None:
    file = root / RECIPE
    if not file.is_file():
        raise DataError(
            f"data.root={root}: holds no demo dataset; remove it, choose another folder, "
            "or read it with data=folder"
        )
    found = json.loads(file.read_text())
    if found != _recipe(demo):
        raise DataError(
            f"data.root={root}: holds a demo dataset made with {found} instead of {_recipe(demo)}; "
            "remove the folder or choose another"
        )


def _generate(root: Path, demo: DemoConfig) -> None:
    unfinished = root.parent / f".{root.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    pictures = list(_pictures(demo))
    for folder in {file.parent for file, _, _ in pictures}:
        (unfinished / folder).mkdir(parents=True)

    def write(picture: tuple[Path, int, int]) -> None:
        file, number, label = picture
        (unfinished / file).write_bytes(draw_jpeg(demo.seed, number, label))

    # numpy and Pillow release the GIL.
    for _ in in_threads(write, pictures, len(pictures), "demo dataset"):
        pass
    (unfinished / RECIPE).write_text(json.dumps(_recipe(demo)))
    os.sync()
    unfinished.rename(root)


def _pictures(demo: DemoConfig) -> Iterator[tuple[Path, int, int]]:
    """File, number and label of every picture; the splits share no number."""
    classes = list(PATTERNS)
    for number in range(demo.train_images + demo.val_images):
        split = "train" if number < demo.train_images else "val"
        label = number % len(classes)
        yield Path(split, classes[label], f"{number:05d}.jpg"), number, label
