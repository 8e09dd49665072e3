"""The photographs that the benchmarks decode: those that scikit-image and scikit-learn ship."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tests.photographs import PHOTOGRAPHS

HEIGHT, WIDTH, QUALITY = 533, 800, 90
SENSOR_NOISE, PHONE_QUALITY = 4.0, 95
"""The noise's standard deviation is in levels, of 255."""
NAMES = ("china", "flower", "rocket", "coffee", "astronaut", "cat")


def covering(
    name: str, height: int, width: int, *, zoom: float = 1, across: float = 0.5
) -> Image.Image:
    """Returns a crop of height x width of a photograph, which is scaled to `zoom` times the least
    size.

    `across`: where the crop lies, from 0 for top left to 1 for bottom right.
    """
    image = Image.open(PHOTOGRAPHS[name]).convert("RGB")
    scale = zoom * max(width / image.width, height / image.height)
    size = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
    left, top = round((size[0] - width) * across), round((size[1] - height) * across)
    return image.resize(size).crop((left, top, left + width, top + height))


def encode(image: Image.Image, quality: int = QUALITY) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, subsampling="4:2:0")
    return out.getvalue()


def photographs(height: int = HEIGHT, width: int = WIDTH) -> list[bytes]:
    """Six JPEGs of one size."""
    return [encode(covering(name, height, width)) for name in NAMES]


def many_photographs() -> list[bytes]:
    """48 JPEGs of one size: processors memorize the branches of a few files, but not of so many."""
    return [
        encode(covering(name, HEIGHT, WIDTH, zoom=1 + 0.08 * i, across=i / 7))
        for name in NAMES
        for i in range(8)
    ]


def write_classes(
    folder: Path, jpegs: Sequence[bytes], count: int, classes: int, *, linked: bool = False
) -> None:
    """Writes `count` files, `jpegs` in turns, as FOLDER/CLASS/NUMBER.jpg; `linked`: equal files are
    links to the first."""
    files: list[Path] = []
    for number in range(count):
        file = folder / f"class{number % classes}" / f"{number:06d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        if linked and number >= len(jpegs):
            file.hardlink_to(files[number % len(jpegs)])
        else:
            file.write_bytes(jpegs[number % len(jpegs)])
        files.append(file)


def phone_photographs(zoom: float = 1) -> list[bytes]:
    """Six JPEGs of 12 megapixels, about 4 MB each: enlarged, with the noise of a small sensor."""
    draw = np.random.default_rng(0)
    found = []
    for name in NAMES:
        pixels = np.asarray(covering(name, 3000, 4000, zoom=zoom), np.float32)
        noisy = pixels + draw.normal(0, SENSOR_NOISE, pixels.shape).astype(np.float32)
        found.append(encode(Image.fromarray(noisy.clip(0, 255).astype(np.uint8)), PHONE_QUALITY))
    return found


def tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
