"""Adding restart markers changes no pixel."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image, ImageCms
from torchvision.io import ImageReadMode, decode_jpeg

import custom_op
from tests.custom_op.jpegs import (
    KINDS,
    SAMPLINGS,
    encode,
    markers,
    picture,
    tensor,
)


def interval_of(data: torch.Tensor) -> int:
    encoded = bytes(data.numpy())
    at = next(at for marker, at in markers(encoded) if marker == 0xDD)
    return int.from_bytes(encoded[at + 4 : at + 6], "big")


def pixels(data: torch.Tensor) -> torch.Tensor:
    return custom_op.decode_and_crop_jpeg(data, 0, 0, *custom_op.jpeg_size(data))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_file_with_restart_markers_has_the_same_pixels(sampling: str, kind: str) -> None:
    data = tensor(encode(picture(70, 101), sampling, **KINDS[kind]))
    indexed = custom_op.add_restart_markers(data, 2)
    expected = decode_jpeg(data, ImageReadMode.RGB)
    assert torch.equal(decode_jpeg(indexed, ImageReadMode.RGB), expected)
    assert 0xC0 in [marker for marker, _ in markers(bytes(indexed.numpy()))]


@pytest.mark.parametrize(
    ("mcus_per_row", "wanted", "used"),
    [(12, 5, 4), (12, 4, 4), (12, 1, 1), (12, 100, 12), (13, 5, 13), (1, 5, 1), (50, 10, 10)],
)
def test_interval_divides_the_mcus_per_row(mcus_per_row: int, wanted: int, used: int) -> None:
    data = tensor(encode(picture(16, 16 * mcus_per_row)))
    assert interval_of(custom_op.add_restart_markers(data, wanted)) == used


@pytest.mark.parametrize("sampling", ["grey", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("quality", [10, 70])
def test_a_small_file_gets_fewer_markers_rather_than_grow(sampling: str, quality: int) -> None:
    data = tensor(encode(picture(320, 512), sampling, quality, optimise=True))
    many = custom_op.add_restart_markers(data, 1)
    few = custom_op.add_restart_markers(data, 1, max_growth=0.01)
    per_row = custom_op.add_restart_markers(data, 1000)
    assert len(many) > 1.05 * len(data)
    assert len(few) <= max(1.01 * len(data), len(per_row))
    assert interval_of(few) > 1
    expected = decode_jpeg(data, ImageReadMode.RGB)
    assert torch.equal(decode_jpeg(few, ImageReadMode.RGB), expected)


@pytest.mark.parametrize("growth", [0.0, 0.05, 0.1, 0.2, 0.3, 10.0])
@pytest.mark.parametrize("progressive", [0, 1])
def test_the_shortest_interval_that_fits_is_used(progressive: int, growth: float) -> None:
    data = tensor(encode(picture(320, 512), "4:2:0", 40, progressive=progressive))
    got = custom_op.add_restart_markers(data, 1, max_growth=growth)
    sizes = {k: len(custom_op.add_restart_markers(data, k)) for k in (1, 2, 4, 8, 16, 32)}
    fitting = [k for k, size in sizes.items() if size <= len(data) * (1 + growth)]
    assert interval_of(got) == min(fitting, default=32)
    assert torch.equal(decode_jpeg(got, ImageReadMode.RGB), decode_jpeg(data, ImageReadMode.RGB))


def test_orientation_profile_and_comment_are_kept() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    out = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture(60, 90)).save(
        out, "JPEG", icc_profile=profile, exif=exif, comment=b"kept"
    )
    indexed = custom_op.add_restart_markers(tensor(out.getvalue()), 2)
    assert custom_op.jpeg_orientation(indexed) == 6
    image = Image.open(io.BytesIO(bytes(indexed.numpy())))
    assert image.info["icc_profile"] == profile
    assert image.info["comment"] == b"kept"


def test_cmyk_file_with_restart_markers_has_the_same_pixels() -> None:
    pixels = picture(40, 60)[:, :, [0, 1, 2, 0]]
    for adobe in (0, 1):
        data = tensor(encode(pixels, "4:4:4", adobe=adobe))
        indexed = custom_op.add_restart_markers(data, 2)
        box = (3, 5, 30, 50)
        assert torch.equal(
            custom_op.decode_and_crop_jpeg(indexed, *box),
            custom_op.decode_and_crop_jpeg(data, *box),
        )


def test_broken_file_raises_not_indexable_error() -> None:
    good = encode(picture(40, 60))
    for broken in (b"", b"GIF89a..", good[:-200], good[: len(good) // 2]):
        with pytest.raises(custom_op.NotIndexableError):
            custom_op.add_restart_markers(tensor(broken or b"\0")[: len(broken)], 2)


def test_progressive_file_without_its_last_scans_keeps_its_pixels_or_is_refused() -> None:
    """libjpeg estimates missing coefficients, which a baseline file could not hold."""
    complete = encode(picture(75, 130), quality=80, progressive=True)
    scans = [at for marker, at in markers(complete) if marker == 0xDA]
    refused = []
    for count in range(1, len(scans)):
        data = tensor(complete[: scans[count]] + b"\xff\xd9")
        try:
            marked = custom_op.add_restart_markers(data, 2)
        except custom_op.NotIndexableError as error:
            assert "would change its pixels" in str(error)
            refused.append(count)
        else:
            assert torch.equal(pixels(marked), pixels(data))
    assert refused and 1 in refused


def test_interval_below_one_is_refused() -> None:
    with pytest.raises(custom_op.JpegError, match="at least 1 MCU; got 0"):
        custom_op.add_restart_markers(tensor(encode(picture(16, 16))), 0)
