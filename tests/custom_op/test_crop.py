"""A crop is bit-identical to decoding the whole image and cropping it.

EXACT_PAIRS in the environment makes the test of random files longer.
"""

import io
import itertools
import os
import random
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import custom_op
from custom_op import decode_and_crop_jpeg
from tests.custom_op.jpegs import (
    KINDS,
    SAMPLINGS,
    assert_crops_equal,
    decoded,
    encode,
    picture,
    random_picture,
    tensor,
    whole,
)

PAIRS = int(os.environ.get("EXACT_PAIRS", "20000"))
SPECIALIZED = ("grey", "4:4:4", "4:2:2", "4:2:0", "4:4:0")
"""The samplings that the operator decodes without libjpeg."""


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_crops_equal_the_whole_image_in_every_sampling_and_coding(sampling: str, kind: str) -> None:
    rng = random.Random(f"{sampling} {kind}")
    for seed in range(8):
        pixels = picture(rng.randint(1, 120), rng.randint(1, 160), seed)
        data = tensor(encode(pixels, sampling, rng.choice((5, 50, 90, 100)), **KINDS[kind]))
        expected = decoded(data)
        assert torch.equal(whole(data), expected)
        assert_crops_equal(data, expected, rng, 50)


def test_random_crops_of_random_baseline_files_equal_the_whole_decode() -> None:
    rng = random.Random(15)
    for _ in range(PAIRS // 50):
        data = tensor(
            encode(
                random_picture(rng),
                rng.choice(SPECIALIZED),
                rng.choice((rng.randint(1, 100), 75, 100)),
                restart_interval=rng.choice((0, rng.randint(1, 9), rng.randint(1, 300))),
                optimise=rng.randrange(2),
                wide_tables=rng.randrange(2),
            )
        )
        assert_crops_equal(data, decoded(data), rng, 50)


@pytest.mark.parametrize("kind", ["plain", "restart 3", "progressive"])
def test_every_crop_of_a_small_image_is_exact(kind: str) -> None:
    data = tensor(encode(picture(19, 21), **KINDS[kind]))
    expected = decoded(data)
    for height, width in itertools.product(range(1, 20), range(1, 22)):
        for top, left in itertools.product(range(0, 20 - height, 3), range(22 - width)):
            crop = decode_and_crop_jpeg(data, top, left, height, width)
            assert torch.equal(crop, expected[:, top : top + height, left : left + width])


@pytest.mark.parametrize("scans", range(1, 10))
def test_crops_of_a_progressive_file_without_its_last_scans_are_exact(scans: int) -> None:
    """The reference is the whole image from the same libjpeg: versions estimate the missing
    coefficients differently."""
    complete = encode(picture(75, 130), quality=80, progressive=True)
    starts = [at for at in range(len(complete)) if complete[at : at + 2] == b"\xff\xda"]
    assert len(starts) == 10
    data = tensor(complete[: starts[scans]] + b"\xff\xd9")
    assert_crops_equal(data, whole(data), random.Random(scans), 60)


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


@pytest.mark.parametrize("adobe", [0, 1], ids=["CMYK", "YCCK"])
def test_cmyk_is_converted_as_pillow_does(adobe: int) -> None:
    pixels = np.concatenate([picture(60, 80), picture(60, 80, seed=1)[:, :, :1]], axis=2)
    encoded = encode(pixels, "4:4:4", adobe=adobe)
    expected = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB")).astype(int)
    crop = decode_and_crop_jpeg(tensor(encoded), 7, 11, 40, 50)
    difference = crop.permute(1, 2, 0).numpy() - expected[7:47, 11:61]
    assert np.abs(difference).max() <= 2


def test_crop_has_channels_last_strides() -> None:
    crop = decode_and_crop_jpeg(tensor(encode(picture(30, 40))), 1, 2, 20, 30)
    assert crop.dtype == torch.uint8 and crop.shape == (3, 20, 30)
    assert crop.stride() == (1, 90, 3)


@pytest.mark.parametrize("operator", ["crop", "batch"])
def test_gil_is_released_while_an_image_decodes(operator: str) -> None:
    """So threads of the caller decode parts of a batch at the same time."""
    data, box = tensor(encode(picture(1000, 1500), quality=95)), [0, 0, 1000, 1500]
    decode = {
        "crop": lambda: decode_and_crop_jpeg(data, *box),
        "batch": lambda: custom_op.decode_crop_resize_batch([data], torch.tensor([box]), 224),
    }[operator]
    custom_op.load()
    decoding = False
    seen: list[bool] = []
    may_look = threading.Lock()

    def look() -> None:
        with may_look:
            seen.append(decoding)

    watcher = threading.Thread(target=look)
    interval = sys.getswitchinterval()
    with may_look:
        watcher.start()
        # Python code releases the GIL on request only after this long. So if the watcher runs while
        # `decoding` is set, the operator has released the GIL.
        sys.setswitchinterval(60)
        decoding = True
    try:
        for _ in range(100):
            if not seen:
                decode()
        decoding = False
    finally:
        sys.setswitchinterval(interval)
        watcher.join()
    assert seen == [True]
