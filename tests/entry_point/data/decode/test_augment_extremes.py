"""Every operation of every policy at its ends: all engines accept it, or none does."""

import io
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from custom_op.augment_ops import NUMBERS, PARAMETERS
from entry_point.config.augment_config import AugmentConfig
from entry_point.config.policy_config import POLICIES
from entry_point.data.decode.allocation import reused_memory
from entry_point.data.decode.decode import BatchDecoder, OperatorDecoder
from entry_point.data.decode.pillow import PillowDecoder
from entry_point.data.plan.crops import CropPlan
from entry_point.data.plan.policies import Floats, build_augmenter
from entry_point.data.sources.source import Encoded
from tests.custom_op.augment.torchvision_ops import GEOMETRY, between_pixels, image

SIDE = 100
"""That of `image`: crops are not resized, so all engines begin with the same pixels."""
BILINEAR = {"interpolation": "bilinear", "fill": [255, 0, 1]}
ENDS: dict[str, list[dict[str, Any]]] = {
    "trivial": [{}, BILINEAR],
    "rand_timm": [
        {"m": m, "p": 1, "inc": inc, "mstd": mstd, **move}
        for m in (0, 10)
        for inc in (False, True)
        for mstd in (0, 100)
        for move in ({}, BILINEAR)
    ],
    "color_jitter": [
        {"brightness": width, "contrast": width, "saturation": width, "hue": hue}
        for width, hue in ((0, 0), (100, 0.5))
    ],
    "simclr": [{"strength": end, "jitter": 1, "grayscale": 1, "blur": 1} for end in (0, 2.5)],
    "erase": [
        {"p": 1, "scale": scale, "ratio": ratio}
        for scale in ([0, 0], [0, 1], [1, 1])
        for ratio in ([0.3, 3.3], [1e-3, 1e3])
    ],
}
"""The arguments of each policy at both ends of what is allowed."""


@cache
def drawn() -> Floats:
    """What the policies draw from random numbers, of which half are the least or the largest."""
    rng, tables = np.random.default_rng(0), []
    for name, kwargs in ((name, each) for name, ends in ENDS.items() for each in ends):
        augmenter = build_augmenter(AugmentConfig(name, kwargs), [0.5] * 3)
        assert augmenter is not None
        ((_, policy),) = augmenter.steps
        u = rng.random((policy.draws, 2000))
        ends = rng.choice([0, np.nextafter(1, 0)], u.shape)
        u = np.where(rng.random(u.shape) < 0.5, ends, u)
        tables.append(policy.table(u, SIDE).reshape(-1, 8))
    return np.concatenate(tables)


def rows_at_ends(name: str) -> Floats:
    """An operation with each parameter at its smallest and largest value, and at 0 and 1."""
    rows = drawn()[drawn()[:, 0] == NUMBERS[name]]
    found = [rows[0]]
    for column, parameter in enumerate(PARAMETERS[name], 1):
        if parameter in ("red", "green", "blue"):  # ENDS has both ends
            continue
        for end in (rows[rows[:, column].argmin()], rows[rows[:, column].argmax()]):
            found += [end, end.copy(), end.copy()]
            found[-2][column], found[-1][column] = 0, 1
    return np.unique(found, axis=0)


@cache
def images(form: str) -> list[Tensor]:
    """JPEGs, or PNGs of the same pixels."""
    jpegs = [image(kind) for kind in ("photograph", "white", "one channel")]
    if form == "JPEG":
        return jpegs
    files = [io.BytesIO() for _ in jpegs]
    for jpeg, file in zip(jpegs, files, strict=True):
        Image.open(io.BytesIO(jpeg.numpy().tobytes())).save(file, form)
    return [torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8) for file in files]


def samples(form: str, decoder: BatchDecoder, cells: Floats) -> Tensor | None:
    """Whole images after an operation, int32 (N, 3, SIDE, SIDE); None if it is refused."""
    encoded = Encoded(images(form))
    count = len(encoded)
    whole = np.array([[0, 0, SIDE, SIDE]]).repeat(count, axis=0)
    plan = CropPlan(SIDE, whole, np.zeros(count, np.bool_), cells[None, None].repeat(count, axis=0))
    try:
        pixels, damage = decoder.decode(encoded, plan, reused_memory)
    except Exception:
        return None
    assert not damage
    return pixels.int()


def test_every_policy_is_tried() -> None:
    assert ENDS.keys() == POLICIES.keys()


@pytest.mark.parametrize("name", PARAMETERS)
def test_engines_accept_the_same_operations_and_give_the_same_pixels(name: str) -> None:
    """Of JPEG and PNG, within one level."""
    decoders = (OperatorDecoder(), PillowDecoder())
    for cells in rows_at_ends(name):
        operation = name, tuple(cells[1:].tolist())
        made = [samples(form, each, cells) for form in ("JPEG", "PNG") for each in decoders]
        accepted = [each for each in made if each is not None]
        assert len(accepted) in (0, len(made)), f"{operation}: refused by some"
        assert accepted or not (drawn() == cells).all(1).any(), f"{operation}: drawn, and refused"
        is_sure = torch.ones(SIDE, SIDE, dtype=torch.bool)
        if name in GEOMETRY and not cells[2]:
            is_sure = ~between_pixels(operation, SIDE)
        for each in accepted[1:]:
            assert ((each - accepted[0]).abs() * is_sure).max() <= 1, operation
