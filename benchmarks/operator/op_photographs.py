"""The photographs that the operator's benchmarks decode, plain and with restart markers."""

from __future__ import annotations

import io

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from skimage import data as skimage_data
from sklearn.datasets import load_sample_image
from torch import Tensor

HEIGHT, WIDTH, QUALITY = 533, 800, 90


def pixels() -> list[NDArray[np.uint8]]:
    """Real photographs that come with scikit-image and scikit-learn."""
    return [
        load_sample_image("china.jpg"),
        load_sample_image("flower.jpg"),
        skimage_data.rocket(),
        skimage_data.coffee(),
        skimage_data.astronaut(),
        skimage_data.chelsea(),
    ]


def covering(photograph: NDArray[np.uint8], height: int, width: int) -> Image.Image:
    """The photograph at the size that just covers height x width, its middle cut out."""
    image = Image.fromarray(photograph)
    scale = max(width / image.width, height / image.height)
    size = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return image.resize(size).crop((left, top, left + width, top + height))


def encode(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY, subsampling="4:2:0")
    return out.getvalue()


def photographs(height: int = HEIGHT, width: int = WIDTH) -> list[bytes]:
    return [encode(covering(photograph, height, width)) for photograph in pixels()]


def tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
