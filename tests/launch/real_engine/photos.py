"""A JPEG dataset small enough to train on in a test."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("coarse", "fine", "stripes")
PER_CLASS = {"train": 16, "val": 2}
HEIGHT, WIDTH = 120, 160


def pattern(name: str, generator: np.random.Generator) -> np.ndarray:
    """One image of a class, uint8 (HEIGHT, WIDTH, 3)."""
    cell = {"coarse": 40, "fine": 8, "stripes": 20}[name]
    rows = 1 if name == "stripes" else HEIGHT // cell
    small = generator.integers(0, 255, (rows, WIDTH // cell, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((WIDTH, HEIGHT), Image.Resampling.NEAREST))


def write_photos(root: Path) -> Path:
    """Write ``root/SPLIT/CLASS/NUMBER.jpg``; returns ``root``."""
    generator = np.random.default_rng(7)
    for split, count in PER_CLASS.items():
        for name in CLASSES:
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                picture = Image.fromarray(pattern(name, generator))
                picture.save(folder / f"{number:03d}.jpg", quality=90)
    return root


def write_many_photos(root: Path, photos: Path, copies: int) -> Path:
    """Write the dataset ``photos`` with each training image ``copies`` times; returns ``root``."""
    for picture in photos.rglob("*.jpg"):
        split, name, _ = picture.relative_to(photos).parts
        folder = root / split / name
        folder.mkdir(parents=True, exist_ok=True)
        for copy in range(copies if split == "train" else 1):
            (folder / f"{picture.stem}-{copy:03d}.jpg").hardlink_to(picture)
    return root
