"""A crop is bit-identical to decoding the whole image and cropping it."""

from __future__ import annotations

import io
import random
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

import custom_op
from tests.custom_op.jpegs import KINDS, SAMPLINGS, decoded, encode, picture, tensor


def whole(data: Tensor) -> Tensor:
    height, width = custom_op.jpeg_size(data)
    return custom_op.decode_and_crop_jpeg(data, 0, 0, height, width)


def random_box(rng: random.Random, height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height, width; small boxes and boxes at the edges of the image are frequent."""
    crop_height = rng.randint(1, rng.choice((min(4, height), height)))
    crop_width = rng.randint(1, rng.choice((min(4, width), width)))
    top = rng.choice((0, height - crop_height, rng.randint(0, height - crop_height)))
    left = rng.choice((0, width - crop_width, rng.randint(0, width - crop_width)))
    return top, left, crop_height, crop_width


def assert_crops_equal(data: Tensor, expected: Tensor, rng: random.Random, count: int) -> None:
    height, width = expected.shape[1:]
    for _ in range(count):
        top, left, h, w = random_box(rng, height, width)
        crop = custom_op.decode_and_crop_jpeg(data, top, left, h, w)
        box = (top, left, h, w)
        assert torch.equal(crop, expected[:, top : top + h, left : left + w]), box


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_crops_equal_the_whole_image_in_every_sampling_and_coding(sampling: str, kind: str) -> None:
    rng = random.Random(f"{sampling} {kind}")
    for _ in range(3):
        height, width = rng.randint(1, 90), rng.randint(1, 130)
        data = tensor(encode(picture(height, width), sampling, **KINDS[kind]))
        expected = decoded(data)
        assert torch.equal(whole(data), expected)
        assert_crops_equal(data, expected, rng, 40)


@pytest.mark.parametrize("kind", ["plain", "restart 3", "progressive"])
def test_every_crop_of_a_small_image_is_exact(kind: str) -> None:
    data = tensor(encode(picture(19, 21), **KINDS[kind]))
    expected = decoded(data)
    for h in range(1, 20):
        for w in range(1, 22):
            for top in range(0, 20 - h, 3):
                for left in range(22 - w):
                    crop = custom_op.decode_and_crop_jpeg(data, top, left, h, w)
                    assert torch.equal(crop, expected[:, top : top + h, left : left + w])


@pytest.mark.parametrize("scans", range(1, 10))
def test_crops_of_a_progressive_file_without_its_last_scans_are_exact(scans: int) -> None:
    """The reference is the whole image from the same libjpeg: versions estimate the missing
    coefficients differently."""
    complete = encode(picture(75, 130), quality=80, progressive=True)
    starts = [at for at in range(len(complete)) if complete[at : at + 2] == b"\xff\xda"]
    assert len(starts) == 10
    data = tensor(complete[: starts[scans]] + b"\xff\xd9")
    assert_crops_equal(data, whole(data), random.Random(scans), 60)


def test_twenty_thousand_random_crops_equal_the_whole_decode() -> None:
    rng = random.Random(20_000)
    done = 0
    while done < 20_000:
        sampling, kind = rng.choice(list(SAMPLINGS)), rng.choice(list(KINDS))
        height, width = rng.randint(1, 120), rng.randint(1, 160)
        quality = rng.choice((5, 50, 90, 100))
        pixels = picture(height, width, seed=done)
        data = tensor(encode(pixels, sampling, quality, **KINDS[kind]))
        expected = decoded(data)
        assert_crops_equal(data, expected, rng, 50)
        done += 50


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=3, max_size=3),
    st.integers(1, 60),
    st.integers(1, 90),
    st.integers(0, 7),
    st.randoms(use_true_random=False),
)
def test_crops_are_exact_for_all_sampling_factors_that_libjpeg_decodes(
    factors: list[tuple[int, int]], height: int, width: int, interval: int, rng: random.Random
) -> None:
    try:
        encoded = encode(picture(height, width), factors=tuple(factors), restart_interval=interval)
        data = tensor(encoded)
        expected = whole(data)
    except (ValueError, custom_op.JpegError):
        return  # libjpeg does not support these factors
    assert_crops_equal(data, expected, rng, 10)


def test_grayscale_is_returned_as_three_equal_channels() -> None:
    data = tensor(encode(picture(30, 40), "grey"))
    pixels = whole(data)
    assert pixels.shape == (3, 30, 40)
    assert torch.equal(pixels[0], pixels[1]) and torch.equal(pixels[0], pixels[2])


@pytest.mark.parametrize("adobe", [0, 1], ids=["CMYK", "YCCK"])
def test_cmyk_is_converted_as_pillow_does(adobe: int) -> None:
    pixels = np.concatenate([picture(60, 80), picture(60, 80, seed=1)[:, :, :1]], axis=2)
    encoded = encode(pixels, "4:4:4", adobe=adobe)
    expected = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB")).astype(int)
    crop = custom_op.decode_and_crop_jpeg(tensor(encoded), 7, 11, 40, 50)
    difference = crop.permute(1, 2, 0).numpy() - expected[7:47, 11:61]
    assert np.abs(difference).max() <= 2


def test_crop_has_channels_last_strides() -> None:
    crop = custom_op.decode_and_crop_jpeg(tensor(encode(picture(30, 40))), 1, 2, 20, 30)
    assert crop.dtype == torch.uint8 and crop.shape == (3, 20, 30)
    assert crop.stride() == (1, 90, 3)


@pytest.mark.parametrize("operator", ["crop", "batch"])
def test_gil_is_released_while_an_image_decodes(operator: str) -> None:
    """So threads of the caller decode parts of a batch at the same time."""
    data, box = tensor(encode(picture(1000, 1500), quality=95)), [0, 0, 1000, 1500]
    decode = {
        "crop": lambda: custom_op.decode_and_crop_jpeg(data, *box),
        "batch": lambda: custom_op.decode_crop_resize_batch([data], torch.tensor([box]), 224),
    }[operator]
    custom_op.load()
    decoding = False
    seen: list[bool] = []
    may_look = threading.Lock()
    may_look.acquire()

    def look() -> None:
        with may_look:
            seen.append(decoding)

    watcher = threading.Thread(target=look)
    watcher.start()
    interval = sys.getswitchinterval()
    # Python code releases the GIL on request only after this long. So if the watcher runs while
    # `decoding` is set, the operator has released the GIL.
    sys.setswitchinterval(60)
    try:
        decoding = True
        may_look.release()
        for _ in range(100):
            if seen:
                break
            decode()
        decoding = False
    finally:
        sys.setswitchinterval(interval)
        watcher.join()
    assert seen == [True]
