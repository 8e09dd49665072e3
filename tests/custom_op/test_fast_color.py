"""`fast_color`: how far its pixels are from the exact ones, and what it must not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage import data
from torch import Tensor

from custom_op import decode_crop_resize_batch, decode_crop_resize_batch_masked, index_jpeg
from tests.custom_op.jpegs import Pixels, encode, picture, tensor, with_exif_orientation

SAMPLINGS = ("grey", "4:4:4", "4:2:2", "4:2:0", "4:4:0")
PHOTOGRAPHS = {name: getattr(data, name)() for name in ("astronaut", "chelsea", "coffee")}


def both(jpegs: list[Tensor], boxes: Tensor, size: int, **options: object) -> tuple[Tensor, Tensor]:
    """The exact batch and the fast one, int32."""
    exact = decode_crop_resize_batch(jpegs, boxes, size, **options)  # type: ignore[arg-type]
    fast = decode_crop_resize_batch(jpegs, boxes, size, fast_color=True, **options)  # type: ignore[arg-type]
    return exact.int(), fast.int()


def random_boxes(count: int, least: int, height: int, width: int) -> Tensor:
    rng = np.random.default_rng(0)
    heights, widths = (rng.integers(least, limit + 1, count) for limit in (height, width))
    tops = [rng.integers(0, height - h + 1) for h in heights]
    lefts = [rng.integers(0, width - w + 1) for w in widths]
    return torch.from_numpy(np.stack([tops, lefts, heights, widths], 1))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("photograph", PHOTOGRAPHS)
def test_photographs_differ_by_a_fraction_of_a_level(photograph: str, sampling: str) -> None:
    pixels = PHOTOGRAPHS[photograph]
    jpeg = tensor(encode(pixels, sampling, 90))
    boxes = random_boxes(24, 100, *pixels.shape[:2])
    flip = torch.arange(24) % 2 == 0
    exact, fast = both([jpeg] * 24, boxes, 96, flip=flip)
    difference = (exact - fast).abs()
    assert 0 < difference.float().mean() < 0.35
    assert (difference <= 2).float().mean() > 0.995


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_edges_of_the_image_are_as_close_as_its_middle(sampling: str) -> None:
    pixels = PHOTOGRAPHS["chelsea"][:97, :131]
    jpeg = tensor(encode(pixels, sampling, 90))
    boxes = torch.tensor([[0, 0, 97, 131], [1, 1, 96, 130], [0, 3, 97, 67], [33, 0, 64, 131]])
    exact, fast = both([jpeg] * 4, boxes, 48)
    for edge in (np.s_[:, :, 0], np.s_[:, :, -1], np.s_[..., 0], np.s_[..., -1]):
        assert (exact[edge] - fast[edge]).abs().float().mean() < 0.6


@settings(max_examples=60, deadline=None)
@given(
    sampling=st.sampled_from(SAMPLINGS),
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    size=st.integers(1, 40),
    seed=st.integers(0, 2**31),
)
def test_any_box_of_any_image_is_close_on_average(
    sampling: str, height: int, width: int, size: int, seed: int
) -> None:
    jpeg = tensor(encode(picture(height, width), sampling, 90))
    rng = np.random.default_rng(seed)
    h, w = rng.integers(1, height + 1), rng.integers(1, width + 1)
    box = [rng.integers(0, height - h + 1), rng.integers(0, width - w + 1), h, w]
    exact, fast = both([jpeg], torch.tensor([box]), size)
    assert (exact - fast).abs().float().mean() < 3


def saturated(seed: int) -> Pixels:
    """Blocks of 8 x 8 pixels in the corners of RGB: after coding, many values are limited."""
    colors = np.random.default_rng(seed).integers(0, 2, (12, 12, 3)) * 255
    return colors.repeat(8, 0).repeat(8, 1).astype(np.uint8)


@pytest.mark.parametrize("sampling", SAMPLINGS[1:])
def test_colors_that_rgb_cannot_hold_differ_more(sampling: str) -> None:
    jpegs = [tensor(encode(saturated(seed), sampling, 80)) for seed in range(8)]
    exact, fast = both(jpegs, torch.tensor([[0, 0, 96, 96]] * 8), 60)
    assert (exact - fast).abs().float().mean() < 2


def test_a_plain_area_keeps_its_color() -> None:
    pixels = np.full((80, 80, 3), (180, 90, 40), np.uint8)
    jpeg = tensor(encode(pixels, "4:2:0", 95))
    exact, fast = both([jpeg], torch.tensor([[3, 5, 70, 71]]), 30)
    assert (exact - fast).abs().max() <= 1
    assert fast.flatten(2).unique(dim=2).shape[2] == 1


def test_crops_with_fewer_rows_than_the_result_are_exact() -> None:
    jpeg = tensor(encode(PHOTOGRAPHS["coffee"], "4:2:0", 90))
    exact, fast = both([jpeg] * 2, torch.tensor([[10, 20, 95, 300], [0, 0, 40, 40]]), 96)
    assert torch.equal(exact, fast)


def test_ycbcr_is_exact() -> None:
    jpeg = tensor(encode(PHOTOGRAPHS["coffee"], "4:2:0", 90))
    exact, fast = both([jpeg], torch.tensor([[0, 0, 400, 400]]), 96, color="ycbcr")
    assert torch.equal(exact, fast)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_applies(orientation: int) -> None:
    pixels = PHOTOGRAPHS["astronaut"][:300, :400]
    jpeg = tensor(with_exif_orientation(encode(pixels, "4:2:0", 90), orientation))
    exact, fast = both([jpeg], torch.tensor([[11, 22, 260, 240]]), 64)
    assert (exact - fast).abs().float().mean() < 0.35


def test_threads_batch_and_side_indexes_do_not_change_it() -> None:
    jpegs = [tensor(encode(pixels, "4:2:0", 90)) for pixels in PHOTOGRAPHS.values()]
    boxes = torch.tensor([[5, 7, 200, 290]] * 3)
    whole = decode_crop_resize_batch(jpegs, boxes, 96, fast_color=True, num_threads=1)
    indexes = [index_jpeg(jpeg, 4) for jpeg in jpegs]
    for options in ({"num_threads": 3}, {"indexes": indexes}):
        again = decode_crop_resize_batch(jpegs, boxes, 96, fast_color=True, **options)
        assert torch.equal(again, whole)
    for i in range(3):
        alone = decode_crop_resize_batch(jpegs[i : i + 1], boxes[:1], 96, fast_color=True)
        assert torch.equal(alone[0], whole[i])


def test_the_same_files_are_damaged() -> None:
    good = encode(PHOTOGRAPHS["chelsea"], "4:2:0", 80)
    rng = np.random.default_rng(0)
    jpegs = []
    for _ in range(120):
        copy = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            copy[rng.integers(700, len(copy))] = rng.integers(256)
        jpegs.append(tensor(bytes(copy[: rng.integers(900, len(copy) + 1)])))
    boxes = torch.tensor([[0, 0, 250, 300]] * len(jpegs))
    exact, damaged = decode_crop_resize_batch_masked(jpegs, boxes, 96)
    fast, also = decode_crop_resize_batch_masked(jpegs, boxes, 96, fast_color=True)
    assert damaged.any() and not damaged.all()
    assert torch.equal(damaged, also)
    assert (exact.int() - fast.int()).abs().float().mean() < 1
