"""The operations of the batch operator compared with torchvision's on uint8 tensors."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from custom_op import decode_crop_resize_batch
from custom_op.augment_ops import COLUMNS, PARAMETERS
from tests.custom_op.augment.torchvision_ops import (
    GEOMETRY,
    IMAGES,
    Operation,
    between_pixels,
    expected,
    image,
    table,
)
from tests.custom_op.jpegs import encode, picture, tensor, with_exif_orientation

LEVELS = {"hue": 2, "gaussian_blur": 2}
"""The largest difference; 1 for the others."""

EXACT = (
    *("identity", "brightness", "posterize", "solarize", "solarize_add", "equalize", "invert"),
    "erase",
)


def crop(kind: str, size: int, *operations: Operation, **options: Any) -> Tensor:
    box = torch.tensor([[0, 0, 100, 100]])
    augment = table(*operations) if operations else None
    return decode_crop_resize_batch([image(kind)], box, size, augment=augment, **options).images[0]


factors = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 1e-3, 50.0]), st.floats(0, 3, width=32))
colors = st.tuples(*[st.integers(0, 255)] * 3)
turns = st.one_of(st.sampled_from([-0.5, 0.0, 0.5]), st.floats(-0.5, 0.5, width=32))
tangents = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.3]), st.floats(-2, 2, width=32))
degrees = st.one_of(
    st.sampled_from([0.0, 90.0, -90.0, 180.0, 45.0, -135.0]), st.floats(-400, 400, width=32)
)


@st.composite
def rectangles(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    top, left = draw(st.integers(0, size)), draw(st.integers(0, size))
    return top, left, draw(st.integers(0, size - top)), draw(st.integers(0, size - left))


def parameters_of(name: str, size: int) -> st.SearchStrategy[tuple[float, ...]]:
    """Every allowed value, and often the ends of its range."""
    if name in GEOMETRY:
        whole = st.integers(-size - 1, size + 1)
        amount = degrees if name == "rotate" else tangents if name[:5] == "shear" else whole
        fills = st.tuples(amount, st.integers(0, 1), colors)
        return fills.map(lambda drawn: (*drawn[:2], *drawn[2]))
    kernels = st.integers(1, min(size, 26)).map(lambda half: 2 * half - 1)
    thresholds = st.one_of(
        st.sampled_from([0, 1, 255, 255.5, 256]), st.integers(0, 256), st.floats(0, 256, width=32)
    )
    sigmas = st.one_of(st.sampled_from([0.1, 2.0, 0.01, 1e30]), st.floats(0.0625, 9, width=32))
    strategies: dict[str, st.SearchStrategy[tuple[float, ...]]] = {
        "hue": st.tuples(turns),
        "gaussian_blur": st.tuples(kernels, sigmas),
        "posterize": st.tuples(st.one_of(st.sampled_from([0, 8]), st.integers(0, 8))),
        "solarize": st.tuples(thresholds),
        "solarize_add": st.tuples(st.one_of(st.sampled_from([0, 255]), st.integers(0, 255))),
        "erase": st.tuples(rectangles(size), colors).map(lambda drawn: (*drawn[0], *drawn[1])),
    }
    return strategies.get(name, st.tuples(*[factors] * len(PARAMETERS[name])))


@pytest.mark.parametrize("name", PARAMETERS)
@settings(max_examples=70)
@given(st.data())
def test_operation_matches_torchvision(name: str, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(IMAGES))
    size = data.draw(st.sampled_from([1, 2, 3, 5, 16, 33, 64, 224]))
    operation = (name, data.draw(parameters_of(name, size)))
    difference = crop(kind, size, operation).int() - expected(crop(kind, size), operation).int()
    if name in GEOMETRY and not operation[1][1]:
        difference[:, between_pixels(operation, size)] = 0
    assert difference.abs().max() <= (0 if name in EXACT else LEVELS.get(name, 1))


def test_extreme_parameters_are_defined() -> None:
    """torchvision's floats would overflow."""
    largest = torch.finfo(torch.float32).max
    for name in ("brightness", "contrast", "saturation", "sharpness"):
        crop("noise", 9, (name, (largest,)))
    for name in GEOMETRY:
        for amount in (largest, -largest, 2.0**40):
            for bilinear in (0, 1):
                moved = crop("noise", 9, (name, (amount, bilinear, 1, 2, 3)))
                if name != "rotate":
                    assert moved.flatten(1).unique(dim=1).flatten().tolist() == [1, 2, 3]


def test_operations_are_applied_in_their_order() -> None:
    first, second = ("solarize", (100,)), ("brightness", (0.5,))
    base = crop("photograph", 40)
    for order in ((first, second), (second, first)):
        chained = expected(expected(base, order[0]), order[1])
        assert torch.equal(crop("photograph", 40, *order), chained)


def test_operations_that_change_nothing_give_the_plain_crop() -> None:
    neutral: list[Operation] = [("identity", ()), ("posterize", (8,)), ("solarize", (256,))]
    neutral += [(name, (1,)) for name in ("brightness", "contrast", "saturation", "sharpness")]
    neutral += [(name, (0, 1, 5, 5, 5)) for name in GEOMETRY]
    neutral += [
        ("hue", (0,)),
        ("solarize_add", (0,)),
        ("gaussian_blur", (1, 2)),
        ("erase", (3, 3, 0, 5, 1, 1, 1)),
    ]
    assert torch.equal(crop("noise", 50, *neutral), crop("noise", 50))
    no_operations = torch.zeros(1, 0, COLUMNS)
    box = torch.tensor([[0, 0, 100, 100]])
    plain = decode_crop_resize_batch([image("noise")], box, 50, augment=no_operations).images
    assert torch.equal(plain[0], crop("noise", 50))


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("flip", [False, True])
def test_operations_see_the_upright_and_flipped_crop(orientation: int, flip: bool) -> None:
    jpeg = tensor(with_exif_orientation(encode(picture(60, 90)), orientation))
    box, flips = torch.tensor([[4, 6, 50, 40]]), torch.tensor([flip])
    base = decode_crop_resize_batch([jpeg], box, 24, flip=flips).images[0]
    for operation in (("erase", (1, 2, 9, 3, 5, 6, 7)), ("rotate", (33, 0, 5, 6, 7))):
        got = decode_crop_resize_batch(
            [jpeg], box, 24, flip=flips, augment=table(operation)
        ).images[0]
        assert torch.equal(got, expected(base, operation))
