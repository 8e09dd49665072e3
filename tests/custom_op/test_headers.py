"""Size and orientation, read from headers alone, also from unusual ones."""

import io
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

import custom_op
from tests.custom_op.corpus import odd_files, unusual_headers
from tests.custom_op.jpegs import (
    KINDS,
    SAMPLINGS,
    assert_crops_equal,
    decoded,
    encode,
    markers,
    picture,
    tensor,
    whole,
    with_exif_orientation,
)

HEIGHT, WIDTH = 70, 101
WHOLE = (0, 0, HEIGHT, WIDTH)
FILES = dict(unusual_headers(encode(picture(HEIGHT, WIDTH), restart_interval=2)))


def orientation_of(data: bytes) -> int:
    return int(custom_op.jpeg_headers([tensor(data)])[0, 2])


def size_or_zeros(data: Tensor) -> list[int]:
    try:
        return [*custom_op.jpeg_size(data)]
    except custom_op.JpegError:
        return [0, 0]


@pytest.mark.parametrize("long", [False, True], ids=["SHORT", "LONG"])
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("orientation", [*range(10), 65535])
def test_orientation_equals_pillow_and_is_upright_if_invalid(
    orientation: int, big_endian: bool, long: bool
) -> None:
    plain = encode(picture(20, 30))
    data = with_exif_orientation(plain, orientation, big_endian=big_endian, long=long)
    assert Image.open(io.BytesIO(data)).getexif()[0x0112] == orientation
    assert orientation_of(data) == (orientation if 1 <= orientation <= 8 else 1)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(KINDS)),
            st.sampled_from(list(SAMPLINGS)),
            st.integers(1, 60),
            st.integers(1, 60),
            st.integers(1, 8),
            st.floats(0.2, 2),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_headers_of_a_batch_are_those_of_its_files(
    images: list[tuple[str, str, int, int, int, float]],
) -> None:
    """The EXIF segment has a thumbnail of another size, and some files are cut off."""
    jpegs, expected = [], []
    for kind, sampling, height, width, orientation, kept in images:
        data = encode(picture(height, width), sampling, **KINDS[kind])
        data = with_exif_orientation(data, orientation)
        jpegs.append(tensor(data[: max(1, int(kept * len(data)))]))
        readable = size_or_zeros(jpegs[-1])
        assert readable == [height, width] or (kept < 1 and readable == [0, 0])
        expected.append([*readable, orientation if readable[0] else 0])
    headers = custom_op.jpeg_headers(jpegs)
    assert headers.dtype == torch.int64
    assert headers.tolist() == expected


def test_a_file_without_a_readable_header_is_a_row_of_zeros() -> None:
    jpegs = [tensor(data) for _, data in odd_files()]
    jpegs += [torch.empty(0, dtype=torch.uint8), tensor(b"GIF89a..")]
    found = custom_op.jpeg_headers(jpegs)[:, :2].tolist()
    assert found == [size_or_zeros(jpeg) for jpeg in jpegs]
    assert found[-2:] == [[0, 0]] * 2 and found.count([24, 40]) > len(jpegs) / 2
    with pytest.raises(custom_op.JpegError, match="every JPEG must be a tensor of uint8"):
        custom_op.jpeg_headers([jpegs[0], jpegs[0].int()])


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_unusual_header_changes_no_pixel(data: bytes) -> None:
    jpeg = tensor(data)
    expected = decoded(jpeg)
    assert custom_op.jpeg_size(jpeg) == (HEIGHT, WIDTH)
    assert torch.equal(whole(jpeg), expected)
    assert_crops_equal(jpeg, expected, random.Random(0), 10)
    custom_op.decode_crop_resize_batch([jpeg], torch.tensor([WHOLE]), 8)


@pytest.mark.parametrize("kind", ["plain", "optimised", "separate scans", "arithmetic"])
def test_invalid_scan_parameters_change_no_pixel(kind: str) -> None:
    good = encode(picture(HEIGHT, WIDTH), **KINDS[kind])
    data = bytearray(good)
    for marker, at in markers(good):
        if marker == 0xDA:
            end = at + 2 + int.from_bytes(good[at + 2 : at + 4], "big")
            data[end - 3 : end] = b"\0\0\x21"
    jpeg, expected = tensor(bytes(data)), decoded(tensor(good))
    for file in (jpeg, custom_op.to_baseline(jpeg)):
        assert torch.equal(whole(file), expected)


@pytest.mark.parametrize("garbage", [b"\x12\x34", b"\xff\xff", b"\xff\0\0", b"\xff\xd0"])
def test_orientation_after_extraneous_or_fill_bytes_is_found(garbage: bytes) -> None:
    good = with_exif_orientation(encode(picture(24, 40)), 6)
    first = good.index(b"\xff\xe0") if good[3] == 0xE0 else 2
    other = b"\xff\xfe\0\x04ab"
    assert orientation_of(good[:first] + other + garbage + good[first:]) == 6
