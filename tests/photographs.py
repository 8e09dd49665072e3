"""Real photographs in labeled folders: crops of images that scikit-image and scikit-learn ship."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

NAMES = {
    "astronaut": "skimage/astronaut.png",
    "cat": "skimage/chelsea.png",
    "china": "sklearn/china.jpg",
    "coffee": "skimage/coffee.png",
    "flower": "sklearn/flower.jpg",
    "galaxies": "skimage/hubble_deep_field.jpg",
    "motorcycle": "skimage/motorcycle_left.png",
    "rocket": "skimage/rocket.jpg",
}


def _find(file: str) -> Path:
    """The file in the folder PHOTOGRAPHS, where a machine without the packages has them."""
    package, name = file.split("/")
    if folder := os.environ.get("PHOTOGRAPHS"):
        return Path(folder, name)
    if package == "skimage":
        import skimage.data

        return Path(skimage.data.__file__).parent / name
    import sklearn.datasets

    return Path(sklearn.datasets.__file__).parent / "images" / name


PHOTOGRAPHS = {name: _find(file) for name, file in NAMES.items()}
_ORIENTATION_TAG = 0x0112


def write_photo_folder(
    root: Path, train: int = 6, val: int = 3, seed: int = 0, shrink: int = 1
) -> Path:
    """Write root/{train,val}/<class>/NNN.jpg, `train` and `val` crops per class; returns root.

    The photographs are `shrink` times smaller than they are shipped. Size, quality, subsampling,
    progressive coding and EXIF orientation vary.
    """
    rng = np.random.default_rng(seed)
    for name, file in PHOTOGRAPHS.items():
        photo = Image.open(file).convert("RGB").reduce(shrink)
        for split, count in _wanted(train, val):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number, crop in enumerate(_crops(photo, count, rng)):
                _save(crop, folder / f"{number:03d}.jpg", rng)
    return root


def _wanted(train: int, val: int) -> list[tuple[str, int]]:
    return [(split, count) for split, count in (("train", train), ("val", val)) if count]


def _crops(photo: Image.Image, count: int, rng: np.random.Generator) -> Iterator[Image.Image]:
    for _ in range(count):
        width, height = (int(side * rng.uniform(0.6, 1.0)) for side in photo.size)
        left = int(rng.integers(photo.width - width + 1))
        top = int(rng.integers(photo.height - height + 1))
        yield photo.crop((left, top, left + width, top + height))


def _save(image: Image.Image, file: Path, rng: np.random.Generator) -> None:
    exif = Image.Exif()
    orientation = int(rng.integers(1, 9)) if rng.random() < 0.4 else 1
    exif[_ORIENTATION_TAG] = orientation
    turned = image.transpose(_STORED[orientation]) if orientation > 1 else image
    turned.save(
        file,
        "JPEG",
        quality=int(rng.integers(75, 96)),
        subsampling=int(rng.integers(3)),
        progressive=bool(rng.random() < 0.2),
        exif=exif,
    )


# EXIF value -> the transpose of an upright image that the value undoes.
_STORED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def write_mixed_folder(photographs: Path, folder: Path) -> Path:
    """The same images, three of five in other formats: numbers and order stay."""
    formats: tuple[tuple[str, dict[str, Any]], ...] = (
        ("jpg", {}),
        ("png", {}),
        ("webp", {"lossless": True}),
        ("jpg", {}),
        ("bmp", {}),
    )
    for number, file in enumerate(sorted(photographs.glob("*/*/*.jpg"))):
        suffix, options = formats[number % len(formats)]
        target = (folder / file.relative_to(photographs)).with_suffix(f".{suffix}")
        target.parent.mkdir(parents=True, exist_ok=True)
        if suffix == "jpg":
            shutil.copy(file, target)
        else:
            Image.open(file).save(target, **options)
    return folder
