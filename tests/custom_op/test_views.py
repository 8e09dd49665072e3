"""Several views of an image from one call: each is what a call for it alone gives."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import custom_op
from custom_op import decode_crop_resize_batch
from custom_op.augment_ops import COLUMNS, NUMBERS
from tests.custom_op.jpegs import KINDS, SAMPLINGS, encode, picture, tensor

HEIGHT, WIDTH = 90, 130


def boxes_for(count: int, views: int, draw: random.Random) -> Tensor:
    boxes = []
    for _ in range(count * views):
        height, width = draw.randint(1, HEIGHT), draw.randint(1, WIDTH)
        top, left = draw.randint(0, HEIGHT - height), draw.randint(0, WIDTH - width)
        boxes.append((top, left, height, width))
    return torch.tensor(boxes).view(count, views, 4)


def table_for(count: int, views: int, draw: random.Random) -> Tensor:
    table = torch.zeros(count, views, 2, COLUMNS)
    names = {"invert": 0.0, "solarize": 99.0, "posterize": 3.0, "rotate": 20.0}
    for row in table.view(-1, COLUMNS):
        name = draw.choice(list(names))
        row[0], row[1] = NUMBERS[name], names[name]
    return table


def files(draw: random.Random, count: int) -> tuple[list[Tensor], list[Tensor]]:
    """JPEGs of any sampling and coding, some with a side index and some with a damaged end."""
    jpegs, indexes = [], []
    for seed in range(count):
        kind = KINDS[draw.choice(list(KINDS))]
        jpeg = tensor(
            encode(picture(HEIGHT, WIDTH, seed), draw.choice(list(SAMPLINGS)), 90, **kind)
        )
        indexes.append(custom_op.index_jpeg(jpeg, max_share=1))
        jpegs.append(jpeg[: len(jpeg) // 2] if draw.random() < 0.2 else jpeg)
    return jpegs, indexes


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 4))
def test_each_view_is_that_of_a_call_of_its_own(seed: int, count: int, views: int) -> None:
    draw = random.Random(seed)
    jpegs, indexes = files(draw, count)
    boxes, augment = boxes_for(count, views, draw), table_for(count, views, draw)
    flip = torch.rand(count, views) < 0.5
    several, failed, *_ = decode_crop_resize_batch(
        jpegs,
        boxes,
        24,
        flip=flip,
        augment=augment,
        indexes=indexes,
        mask_errors=True,
    )
    assert several.shape == (count, views, 3, 24, 24)
    singles = [
        decode_crop_resize_batch(
            jpegs,
            boxes[:, view].contiguous(),
            24,
            flip=flip[:, view].contiguous(),
            augment=augment[:, view].contiguous(),
            indexes=indexes,
            mask_errors=True,
        )
        for view in range(views)
    ]
    assert torch.equal(failed, torch.stack([alone.failed for alone in singles]).any(0))
    for view, alone in enumerate(singles):
        assert torch.equal(several[~failed, view], alone.images[~failed])
    assert not several[failed].any()


def test_a_view_after_a_damaged_one_is_exact() -> None:
    """Damage moves the reader to where it does not belong."""
    whole = tensor(encode(picture(HEIGHT, WIDTH), "4:2:0", 90))
    cut = whole[: len(whole) * 2 // 3].clone()
    damaged, good = [0, 0, HEIGHT, WIDTH], [8, 0, 16, WIDTH]
    boxes = torch.tensor([[damaged, good]])
    failed = decode_crop_resize_batch([cut], boxes, 16, mask_errors=True).failed
    assert failed.tolist() == [True]
    again = decode_crop_resize_batch([cut], boxes[:, [1, 1]].contiguous(), 16).images
    expected = decode_crop_resize_batch([whole], boxes[:, 1].contiguous(), 16).images
    assert torch.equal(again[:, 0], expected) and torch.equal(again[:, 1], expected)


@pytest.mark.parametrize("layout", ["by pixel", "planar"])
def test_views_fill_any_layout(layout: str) -> None:
    jpegs = [tensor(encode(picture(HEIGHT, WIDTH, seed))) for seed in range(2)]
    boxes = boxes_for(2, 3, random.Random(1))
    out = torch.full((2, 4, 3, 20, 20), 7, dtype=torch.uint8)
    if layout == "by pixel":
        out = torch.full((2, 4, 20, 20, 3), 7, dtype=torch.uint8).movedim(-1, -3)
    decode_crop_resize_batch(jpegs, boxes, 20, out=out[:, 1:])
    assert torch.equal(out[:, 1:], decode_crop_resize_batch(jpegs, boxes, 20).images)
    assert (out[:, 0] == 7).all()


def test_an_error_names_the_image_and_the_view() -> None:
    jpegs = [tensor(encode(picture(HEIGHT, WIDTH, seed))) for seed in range(2)]
    boxes = boxes_for(2, 3, random.Random(1))
    boxes[1, 2, 0] = HEIGHT
    with pytest.raises(custom_op.JpegError, match="image 1 of the batch: view 2: crop box"):
        decode_crop_resize_batch(jpegs, boxes, 8)
    with pytest.raises(custom_op.JpegError, match="image 0 of the batch: not a JPEG"):
        decode_crop_resize_batch([torch.zeros(9, dtype=torch.uint8), jpegs[0]], boxes, 8)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"boxes": torch.zeros(1, 0, 4, dtype=torch.int64)}, "boxes must have one view or more"),
        ({"boxes": torch.zeros(1, 2, 3, dtype=torch.int64)}, r"must have the shape \(1, 2, 4\)"),
        ({"flip": torch.zeros(1, dtype=torch.bool)}, r"flip must have the shape \(1, 2\)"),
        ({"flip": torch.zeros(1, 3, dtype=torch.bool)}, r"flip must have the shape \(1, 2\)"),
        ({"augment": torch.zeros(1, 2, COLUMNS)}, r"augment must have the shape \(1, 2, n, 8\)"),
        ({"augment": torch.zeros(1, 3, 1, COLUMNS)}, r"augment must have the shape \(1, 2, n, 8\)"),
        (
            {"augment": torch.full((1, 2, 1, COLUMNS), 99.0)},
            "augment: operation 0 of image 0, view 0",
        ),
        ({"out": torch.empty(1, 3, 8, 8, dtype=torch.uint8)}, "out must have the shape"),
        (
            {"out": torch.empty(1, 1, 3, 8, 8, dtype=torch.uint8).expand(1, 2, 3, 8, 8)},
            "contiguous",
        ),
    ],
)
def test_an_invalid_argument_is_named(changed: dict[str, Tensor], message: str) -> None:
    arguments: dict[str, Any] = {"boxes": torch.tensor([[[0, 0, 9, 9]] * 2]), **changed}
    with pytest.raises(custom_op.JpegError, match=message):
        decode_crop_resize_batch([tensor(encode(picture(40, 60)))], size=8, **arguments)
