"""Tables of operations that the batch operator refuses."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import custom_op
from custom_op import decode_crop_resize_batch
from custom_op.augment_ops import COLUMNS, NUMBERS, PARAMETERS
from tests.custom_op.augment.torchvision_ops import Operation, every_operation, image, table


@pytest.mark.parametrize("name", PARAMETERS)
def test_value_that_is_not_allowed_is_named_with_its_operation_and_image(name: str) -> None:
    """Also shows that the C++ code has the names of `augment_ops`."""
    row = every_operation()[NUMBERS[name], 0]
    for column in range(1, COLUMNS):
        field = PARAMETERS[name][column - 1] if column <= len(PARAMETERS[name]) else None
        for wrong in (math.nan, math.inf):
            augment = torch.zeros(3, 2, COLUMNS)
            augment[2, 1] = row
            augment[2, 1, column] = wrong
            problem = f"{field}={wrong}" if field else f"column {column} is {wrong}"
            assert_refused(augment, f"operation 1 of image 2: {name}: {problem}; must be ")


def assert_refused(augment: Tensor, error: str, **options: Any) -> None:
    """Before any image is decoded: the files are damaged."""
    count = 3
    damaged, boxes = [image("noise")[:50]] * count, torch.tensor([[0, 0, 9, 9]] * count)
    with pytest.raises(custom_op.JpegError) as raised:
        decode_crop_resize_batch(damaged, boxes, 32, augment=augment, mask_errors=True, **options)
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (("brightness", (-0.1,)), "factor=-0.1; must be a finite number, at least 0"),
        (("hue", (0.6,)), "factor=0.6; must be a finite number from -0.5 to 0.5"),
        (("posterize", (3.5,)), "bits=3.5; must be a whole number from 0 to 8"),
        (("posterize", (9,)), "bits=9; must be a whole number from 0 to 8"),
        (("solarize", (257,)), "threshold=257; must be a finite number from 0 to 256"),
        (("solarize_add", (-1,)), "addition=-1; must be a whole number from 0 to 255"),
        (("gaussian_blur", (4, 1)), "kernel_size=4; must be odd, from 1 to 63 for size=32"),
        (("gaussian_blur", (65, 1)), "kernel_size=65; must be odd, from 1 to 63 for size=32"),
        (("gaussian_blur", (3, 0)), "sigma=0; must be a finite number greater than 0"),
        (("rotate", (5, 2, 0, 0, 0)), "bilinear=2; must be a whole number from 0 to 1"),
        (("rotate", (5, 1, 0, 256, 0)), "green=256; must be a finite number from 0 to 255"),
        (("translate_x", (0.5, 1, 0, 0, 0)), "pixels=0.5; must be a whole number"),
        (("erase", (0, 30, 2, 3, 0, 0, 0)), "left=30, width=3; the sum must be at most size=32"),
        (("erase", (-1, 0, 2, 3, 0, 0, 0)), "top=-1; must be a whole number, at least 0"),
    ],
    ids=str,
)
def test_allowed_values_are_told(operation: Operation, error: str) -> None:
    assert_refused(table(operation).repeat(3, 1, 1), f"image 0: {operation[0]}: {error}")


@pytest.mark.parametrize("number", [-1, 20, 0.5, math.nan, math.inf, -math.inf])
def test_unknown_number_is_refused(number: float) -> None:
    augment = torch.zeros(3, 1, COLUMNS)
    augment[1, 0, 0] = number
    assert_refused(augment, f"operation 0 of image 1: unknown number {number:g}; must be a whole")


@pytest.mark.parametrize(
    ("augment", "error"),
    [
        (torch.zeros(2, 1, COLUMNS), "augment must have the shape (3, n, 8); got (2, 1, 8)"),
        (torch.zeros(3, 1, COLUMNS - 1), "augment must have the shape (3, n, 8)"),
        (torch.zeros(3, COLUMNS), "augment must have the shape (3, n, 8); got (3, 8)"),
        (torch.zeros(3, 1, COLUMNS, dtype=torch.float64), "augment must be a tensor of float32"),
        (torch.zeros(3, COLUMNS, 2).mT, "augment must be contiguous"),
    ],
)
def test_table_of_another_form_is_refused(augment: Tensor, error: str) -> None:
    assert_refused(augment, error)
