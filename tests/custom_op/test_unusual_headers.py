"""Sound files with an unusual header: libjpeg warns, the pixels are those of other decoders."""

from __future__ import annotations

import io
import random

import pytest
import torch
from PIL import Image
from torch import Tensor

import custom_op
from tests.custom_op.corpus import unusual_headers
from tests.custom_op.jpegs import (
    KINDS,
    decoded,
    encode,
    markers,
    picture,
    tensor,
    with_exif_orientation,
)

HEIGHT, WIDTH = 70, 101
WHOLE = (0, 0, HEIGHT, WIDTH)
FILES = dict(unusual_headers(encode(picture(HEIGHT, WIDTH), restart_interval=2)))


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_unusual_header_changes_no_pixel(data: bytes) -> None:
    jpeg = tensor(data)
    check_everywhere(jpeg, decoded(jpeg))


def check_everywhere(jpeg: Tensor, expected: Tensor) -> None:
    """The whole image, crops and batches have the expected pixels."""
    assert custom_op.jpeg_size(jpeg) == (HEIGHT, WIDTH)
    assert torch.equal(custom_op.decode_and_crop_jpeg(jpeg, *WHOLE), expected)
    rng = random.Random(0)
    for _ in range(10):
        h, w = rng.randint(1, HEIGHT), rng.randint(1, WIDTH)
        y, x = rng.randint(0, HEIGHT - h), rng.randint(0, WIDTH - w)
        crop = expected[:, y : y + h, x : x + w]
        assert torch.equal(custom_op.decode_and_crop_jpeg(jpeg, y, x, h, w), crop)
        custom_op.decode_crop_resize_batch([jpeg], torch.tensor([[y, x, h, w]]), 8)


@pytest.mark.parametrize("kind", ["plain", "optimised", "separate scans", "arithmetic"])
def test_invalid_scan_parameters_change_no_pixel(kind: str) -> None:
    good = encode(picture(HEIGHT, WIDTH), **KINDS[kind])
    data = bytearray(good)
    for marker, at in markers(good):
        if marker == 0xDA:
            end = at + 2 + int.from_bytes(good[at + 2 : at + 4], "big")
            data[end - 3 : end] = b"\0\0\x21"
    jpeg = tensor(bytes(data))
    expected = decoded(tensor(good))
    assert torch.equal(custom_op.decode_and_crop_jpeg(jpeg, *WHOLE), expected)
    baseline = custom_op.to_baseline(jpeg)
    assert torch.equal(custom_op.decode_and_crop_jpeg(baseline, *WHOLE), expected)


def test_orientation_after_extraneous_or_fill_bytes_is_found() -> None:
    good = with_exif_orientation(encode(picture(24, 40)), 6)
    first = good.index(b"\xff\xe0") if good[3] == 0xE0 else 2
    other = b"\xff\xfe\0\x04ab"
    for garbage in (b"\x12\x34", b"\xff\xff", b"\xff\0\0", b"\xff\xd0"):
        data = tensor(good[:first] + other + garbage + good[first:])
        assert custom_op.jpeg_headers([data]).tolist() == [[24, 40, 6]]


def test_first_marker_must_follow_the_start_as_pillow_requires() -> None:
    good = encode(picture(24, 40))
    data = good[:2] + b"\x12" + good[2:]
    with pytest.raises(OSError, match="cannot identify"):
        Image.open(io.BytesIO(data))
    with pytest.raises(custom_op.JpegError, match=r"not a JPEG: .* FF D8 FF"):
        custom_op.decode_and_crop_jpeg(tensor(data), 0, 0, 24, 40)


@pytest.mark.parametrize("kind", ["restart 3", "progressive", "separate scans"])
def test_extraneous_bytes_inside_the_scans_are_damage(kind: str) -> None:
    good = encode(picture(HEIGHT, WIDTH), **KINDS[kind])
    later = [at for marker, at in markers(good) if marker in (0xD1, 0xDA)][-1]
    data = tensor(good[:later] + b"\x12\x34" * 20 + good[later:])
    with pytest.raises(custom_op.JpegError, match=r"extraneous|bad Huffman"):
        custom_op.decode_and_crop_jpeg(data, *WHOLE)
