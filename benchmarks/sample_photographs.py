"""The photographs that the benchmarks decode: those that scikit-image and scikit-learn ship."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from custom_op import add_restart_markers, jpeg_headers
from tests.photographs import PHOTOGRAPHS, write_photo_folder

HEIGHT, WIDTH, QUALITY = 533, 800, 90
NAMES = ("china", "flower", "rocket", "coffee", "astronaut", "cat")


def covering(name: str, height: int, width: int) -> Image.Image:
    """A photograph scaled to just cover height x width, and center-cropped to it."""
    image = Image.open(PHOTOGRAPHS[name]).convert("RGB")
    scale = max(width / image.width, height / image.height)
    size = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return image.resize(size).crop((left, top, left + width, top + height))


def encode(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY, subsampling="4:2:0")
    return out.getvalue()


def photographs(height: int = HEIGHT, width: int = WIDTH) -> list[bytes]:
    """Six JPEGs of one size."""
    return [encode(covering(name, height, width)) for name in NAMES]


def tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def photograph_files(folder: Path, per_class: int) -> list[Path]:
    """JPEG files of crops of eight photographs; size, quality and subsampling vary."""
    write_photo_folder(folder, train=per_class, val=0)
    return sorted(folder.rglob("*.jpg"))


def indexed_photographs(per_class: int = 25, interval: int = 4) -> list[tuple[bytes, int, int]]:
    """Upright JPEGs with restart markers, each with its height and width."""
    with tempfile.TemporaryDirectory() as folder:
        photographs = []
        for file in photograph_files(Path(folder, "photographs"), per_class):
            original = torch.from_numpy(np.fromfile(file, dtype=np.uint8))
            jpeg = add_restart_markers(original, interval)
            ((height, width, orientation),) = jpeg_headers([jpeg]).tolist()
            if orientation == 1:
                photographs.append((jpeg.numpy().tobytes(), height, width))
        return photographs
