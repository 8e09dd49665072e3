"""The demo dataset: ten simple patterns in random colors, generated once.

A class is a pattern (stripes, dots, rings ...). Color, contrast and its sign, scale and position
are drawn independently of the class, so only the pattern distinguishes classes. Each picture also
shows the pattern of another class, weaker, so that good settings score better than others. The
detail is noise of all sizes, as in photographs (Field 1987).
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image

from entry_point.config.data_config import DataConfig, DemoConfig
from entry_point.data.errors import DataError
from entry_point.data.plan.philox import philox
from entry_point.data.progress_bar import in_threads
from entry_point.data.sources.class_folders import list_classes
from entry_point.data.sources.folder import Tree
from entry_point.data.sources.rows import Rows
from entry_point.job.whole_file import naming

_RECIPE = ".recipe.json"
_RECIPE_VERSION = 3
HEIGHT, WIDTH, QUALITY = 533, 800, 90
_WAVES = (64, 32, 16, 8, 4, 2)
"""Wavelengths of the detail in pixels."""
_MOST_OF_ANOTHER = 0.45
"""Largest weight of another class's pattern in a picture."""
_PICTURE_STREAM = 11

Plane = NDArray[np.floating[Any]]


def list_demo(tree: Tree, data: DataConfig, labeled: bool) -> Rows:
    """Returns the pictures in their class folders, generated on first use. Raises DataError."""
    ensure_demo(tree.root, data.demo())
    return list_classes(tree, data, labeled)


def ensure_demo(root: Path, demo: DemoConfig) -> None:
    """Make sure that `root` holds the dataset that `demo` describes. Raises DataError.

    One process generates it in a hidden folder beside `root`, which is renamed when complete; other
    processes wait. The next call removes the folder of a killed process.
    """
    recipe, file = {"version": _RECIPE_VERSION, **asdict(demo)}, root / _RECIPE
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(root.parent / f".{root.name}.lock"):
            if not root.is_dir():
                _generate(root, demo, recipe)
    if not file.is_file():
        raise DataError(
            f"data.root={root}: holds no demo dataset of this version: choose another folder, or "
            "read your own with data=folder"
        )
    found = json.loads(file.read_text())
    if found != recipe:
        raise DataError(
            f"data.root={root}: holds a demo dataset made with {found} instead of {recipe}; "
            "remove the folder or choose another"
        )


def _generate(root: Path, demo: DemoConfig, recipe: dict[str, int]) -> None:
    unfinished = root.parent / f".{root.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    classes, count = list(PATTERNS), demo.train_images + demo.val_images

    def write(number: int) -> None:
        """Draw a picture. No number occurs in several splits."""
        split = "train" if number < demo.train_images else "val"
        label = number % len(classes)
        file = unfinished / split / classes[label] / f"{number:05d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        with naming(file):
            file.write_bytes(draw_jpeg(demo.seed, number, label))

    # Threads, because NumPy and Pillow release the GIL.
    for _ in in_threads(write, range(count), count, "demo dataset"):
        pass
    (unfinished / _RECIPE).write_text(json.dumps(recipe))
    os.sync()
    unfinished.rename(root)


# Pictures


def draw_jpeg(seed: int, number: int, label: int) -> bytes:
    """Returns picture `number` of class `label`, a 533x800 JPEG of quality 90 and 4:2:0."""
    words = philox((seed, _PICTURE_STREAM), (number, 0, 0, 0))
    rng = np.random.Generator(np.random.Philox(key=words[:2, 0]))
    other = (label + int(rng.integers(1, len(PATTERNS)))) % len(PATTERNS)
    share = rng.uniform(0, _MOST_OF_ANOTHER)
    pattern = (1 - share) * _pattern(label, rng) + share * _pattern(other, rng)
    pixels = _paint(pattern, rng)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=QUALITY, subsampling="4:2:0")
    return file.getvalue()


def _pattern(label: int, rng: np.random.Generator) -> Plane:
    """Returns the pattern of a class, float32 from -1 to 1, shape (533, 800)."""
    period, angle = rng.uniform(70, 120), rng.uniform(-0.15, 0.15)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32) / np.float32(period)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    u = x * cos + y * sin + np.float32(rng.uniform(0, 8))
    v = y * cos - x * sin + np.float32(rng.uniform(0, 8))
    return np.tanh(np.float32(rng.uniform(2, 5)) * list(PATTERNS.values())[label](u, v))


def _paint(pattern: Plane, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Mix two random colors by the pattern and add detail of all sizes."""
    middle = rng.uniform(90, 165, size=3)
    contrast = rng.uniform(22, 45) * rng.choice([-1, 1]) * rng.uniform(0.5, 1.5, size=3)
    light = 12 * _detail(rng)
    picture = np.empty((HEIGHT, WIDTH, 3), dtype=np.float32)
    for channel in range(3):
        fine = 4 * _detail(rng)
        picture[..., channel] = middle[channel] + contrast[channel] * pattern + light + fine
    return np.clip(picture, 0, 255).astype(np.uint8)


def _detail(rng: np.random.Generator) -> Plane:
    """Returns noise with standard deviation 1, and equal power in each octave."""
    plane = np.zeros((1, 1), np.float32)
    for wave in _WAVES:
        size = WIDTH // wave + 1, HEIGHT // wave + 1
        plane = _resize(plane, size) + rng.standard_normal(size[::-1], np.float32)
    detail = _resize(plane, (WIDTH, HEIGHT))
    return detail / detail.std()


def _resize(plane: Plane, size: tuple[int, int]) -> Plane:
    return np.asarray(Image.fromarray(plane).resize(size, Image.Resampling.BILINEAR))


def _turn(x: Plane) -> Plane:
    return np.cos(2 * np.pi * x)


def _cell(x: Plane) -> Plane:
    """Returns the signed distance to the nearest integer, from -0.5 to 0.5."""
    return x - np.rint(x)


def _bricks(u: Plane, v: Plane) -> Plane:
    joint = np.minimum(np.abs(_cell(u + 0.5 * np.floor(2 * v))), 0.5 * np.abs(_cell(2 * v)))
    return 12 * (joint - 0.09)


def _center(u: Plane, v: Plane, period: int) -> tuple[Plane, Plane]:
    """Returns distance, and angle in turns, to the nearest point of a square lattice."""
    x, y = _cell(u / period), _cell(v / period)
    return np.hypot(x, y), np.arctan2(y, x) / (2 * np.pi)


def _spiral(u: Plane, v: Plane) -> Plane:
    distance, angle = _center(u, v, 3)
    return _turn(6 * distance + 3 * angle)


PATTERNS: dict[str, Callable[[Plane, Plane], Plane]] = {
    "bricks": _bricks,
    "checker": lambda u, v: 2 * _turn(u / 2) * _turn(v / 2),
    "diagonal": lambda u, v: _turn((u + v) / 1.5),
    "dots": lambda u, v: 8 * (0.32 - np.hypot(_cell(u), _cell(v))),
    "horizontal": lambda u, v: _turn(v) + 0 * u,
    "rays": lambda u, v: _turn(8 * _center(u, v, 3)[1]),
    "rings": lambda u, v: _turn(5 * _center(u, v, 2)[0]),
    "spiral": _spiral,
    "vertical": lambda u, v: _turn(u) + 0 * v,
    "waves": lambda u, v: _turn(v + 0.35 * np.sin(2 * np.pi * u / 1.3)),
}
"""Patterns as functions of `u` to the right and `v` down, in periods; values above 0 are in one
color."""
