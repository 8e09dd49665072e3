"""Images, tables of operations, and what torchvision makes of them."""

import functools
import math

import numpy as np
import torch
from torch import Tensor

from custom_op.augment_ops import COLUMNS, NUMBERS, PARAMETERS
from entry_point.data.decode.augment_reference import augmented
from tests.custom_op.jpegs import encode, photograph, tensor

Operation = tuple[str, tuple[float, ...]]
"""The name and the parameters of an operation."""

GEOMETRY = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


IMAGES = ("photograph", "noise", "black and white", "constant", "black", "white", "one channel")


@functools.cache
def image(kind: str) -> Tensor:
    """A JPEG of 100x100 pixels."""
    rng = np.random.default_rng(3)
    only_red = np.array([1, 0, 0], np.uint8)
    pixels = {
        "photograph": photograph()[100:200, 150:250],
        "noise": rng.integers(0, 256, (100, 100, 3), np.uint8),
        "black and white": rng.integers(0, 2, (100, 100, 1), np.uint8).repeat(3, 2) * 255,
        "constant": np.full((100, 100, 3), (200, 30, 77), np.uint8),
        "black": np.zeros((100, 100, 3), np.uint8),
        "white": np.full((100, 100, 3), 255, np.uint8),
        "one channel": rng.integers(0, 256, (100, 100, 3), np.uint8) * only_red,
    }[kind]
    return tensor(encode(np.ascontiguousarray(pixels), "4:4:4", 100))


def table(*operations: Operation) -> Tensor:
    """The table of one image, float32 (1, K, 8)."""
    rows = torch.zeros(1, len(operations), COLUMNS)
    for row, (name, parameters) in zip(rows[0], operations, strict=True):
        row[: 1 + len(parameters)] = torch.tensor((NUMBERS[name], *parameters))
    return rows


def every_operation() -> Tensor:
    """The table of a batch with one operation per image, in their order, then the nearest moves."""
    values: dict[str, tuple[float, ...]] = {
        "hue": (0.2,),
        "gaussian_blur": (5, 1.2),
        "posterize": (3,),
        "solarize": (99,),
        "solarize_add": (40,),
        "erase": (3, 4, 10, 20, 1, 2, 3),
        **dict.fromkeys(GEOMETRY, (7, 1, 30, 60, 90)),
    }
    plain = {name: (1.6,) * len(fields) for name, fields in PARAMETERS.items()}
    operations = [*(plain | values).items(), *((name, (7, 0, 30, 60, 90)) for name in GEOMETRY)]
    return torch.cat([table(operation) for operation in operations])


def expected(image: Tensor, operation: Operation) -> Tensor:
    """What torchvision gives for a uint8 (3, size, size) image."""
    return augmented(image, table(operation)[0].numpy())


def between_pixels(operation: Operation, size: int) -> Tensor:
    """bool (size, size): the source is half-way between two pixels, or on the edge of the image.

    There, the nearest pixel depends on the last bits of torchvision's coordinates.
    """
    name, (amount, *_) = operation
    y, x = torch.meshgrid(torch.arange(size) + 0.5, torch.arange(size) + 0.5, indexing="ij")
    y, x = y.double() - size / 2, x.double() - size / 2
    if name == "rotate":
        cosine, sine = math.cos(math.radians(amount)), math.sin(math.radians(amount))
        x, y = cosine * x - sine * y, sine * x + cosine * y
    elif name == "shear_x":
        x = x + amount * (y + size / 2)
    elif name == "shear_y":
        y = y + amount * (x + size / 2)
    to_edge = torch.stack([x, y]) + size / 2
    return ((to_edge - to_edge.round()).abs() < 1e-3 * (1 + abs(amount) / 100)).any(0)
