"""Size and orientation, read from headers alone."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

import custom_op
from tests.custom_op.corpus import odd_files
from tests.custom_op.jpegs import (
    KINDS,
    SAMPLINGS,
    decoded,
    encode,
    picture,
    tensor,
    with_exif_orientation,
)


def expected_row(data: Tensor) -> list[int]:
    """The header of a file that is read alone, or zeros if `jpeg_size` raises."""
    try:
        return [*custom_op.jpeg_size(data), orientation_of(data)]
    except custom_op.JpegError:
        return [0, 0, 0]


def orientation_of(data: Tensor) -> int:
    return int(custom_op.jpeg_headers([data])[0, 2])


@pytest.mark.parametrize("kind", KINDS)
def test_size_is_that_of_the_header(kind: str) -> None:
    data = tensor(encode(picture(37, 53), **KINDS[kind]))
    assert custom_op.jpeg_size(data) == (37, 53)


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_equals_pillow(orientation: int, big_endian: bool, long: bool) -> None:
    plain = encode(picture(20, 30))
    data = with_exif_orientation(plain, orientation, big_endian=big_endian, long=long)
    assert Image.open(io.BytesIO(data)).getexif()[0x0112] == orientation
    assert orientation_of(tensor(data)) == orientation


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_invalid_orientation_is_upright(orientation: int, long: bool) -> None:
    data = with_exif_orientation(encode(picture(20, 30)), orientation, long=long)
    assert orientation_of(tensor(data)) == 1


def test_exif_thumbnail_is_ignored() -> None:
    data = tensor(with_exif_orientation(encode(picture(40, 50)), 1))
    assert custom_op.jpeg_size(data) == (40, 50)
    whole = custom_op.decode_and_crop_jpeg(data, 0, 0, 40, 50)
    assert torch.equal(whole, decoded(data))


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
def test_headers_of_a_batch_equal_the_headers_of_its_files(
    images: list[tuple[str, str, int, int, int, float]],
) -> None:
    jpegs, expected = [], []
    for kind, sampling, height, width, orientation, kept in images:
        data = encode(picture(height, width), sampling, **KINDS[kind])
        data = with_exif_orientation(data, orientation)
        if kept >= 1:
            expected.append([height, width, orientation])
        jpegs.append(tensor(data[: max(1, int(kept * len(data)))]))
        if kept < 1:
            expected.append(expected_row(jpegs[-1]))
    headers = custom_op.jpeg_headers(jpegs)
    assert headers.dtype == torch.int64
    assert headers.tolist() == expected
    assert [expected_row(jpeg) for jpeg in jpegs] == expected


def test_headers_of_odd_files_equal_those_read_one_by_one() -> None:
    jpegs = [tensor(data) for _, data in odd_files()]
    expected = [expected_row(jpeg) for jpeg in jpegs]
    assert [0, 0, 0] in expected and [24, 40, 6] in expected
    assert custom_op.jpeg_headers(jpegs).tolist() == expected


def test_a_file_without_a_readable_header_is_a_row_of_zeros() -> None:
    good = encode(picture(20, 30))
    empty = torch.empty(0, dtype=torch.uint8)
    jpegs = [tensor(good), empty, tensor(b"GIF89a.."), tensor(good[:100]), tensor(good)]
    zeros = [0, 0, 0]
    assert custom_op.jpeg_headers(jpegs).tolist() == [[20, 30, 1], zeros, zeros, zeros, [20, 30, 1]]
    for broken in jpegs[1:4]:
        with pytest.raises(custom_op.JpegError, match=r"not a JPEG|truncated"):
            custom_op.jpeg_size(broken)


def test_headers_of_no_files_are_no_rows() -> None:
    assert custom_op.jpeg_headers([]).shape == (0, 3)


def test_wrong_tensors_fail_the_batch() -> None:
    data = tensor(encode(picture(20, 30)))
    with pytest.raises(custom_op.JpegError, match="every JPEG must be a tensor of uint8"):
        custom_op.jpeg_headers([data, data.int()])
