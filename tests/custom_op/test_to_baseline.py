"""A file of any coding becomes baseline without a changed pixel."""

import io

import pytest
import torch
from PIL import Image, ImageCms

import custom_op
from tests.custom_op.jpegs import (
    KINDS,
    SAMPLINGS,
    decoded,
    encode,
    markers,
    picture,
    tensor,
    whole,
)

OTHERS = ["progressive", "progressive, restart 2", "separate scans", "arithmetic"]
"""The kinds that are not baseline."""


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", OTHERS)
def test_baseline_file_has_the_same_pixels_in_one_scan(sampling: str, kind: str) -> None:
    data = tensor(encode(picture(70, 101), sampling, **KINDS[kind]))
    baseline = custom_op.to_baseline(data)
    expected = decoded(data)
    assert torch.equal(decoded(baseline), expected)
    assert torch.equal(whole(baseline), expected)
    found = [marker for marker, _ in markers(bytes(baseline.numpy()))]
    assert 0xC0 in found and found.count(0xDA) == 1 and 0xDD not in found


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - OTHERS))
def test_file_that_is_baseline_already_is_returned_as_it_is(kind: str) -> None:
    data = tensor(encode(picture(70, 101), **KINDS[kind]))
    same = custom_op.to_baseline(data)
    assert torch.equal(same, data) and same.data_ptr() != data.data_ptr()


def test_baseline_file_has_optimized_tables_and_can_have_an_index() -> None:
    photo = picture(300, 451)
    progressive = tensor(encode(photo, progressive=True))
    baseline = custom_op.to_baseline(progressive)
    assert len(custom_op.index_jpeg(progressive)) == 0 < len(custom_op.index_jpeg(baseline))
    assert len(baseline) == len(encode(photo, optimise=True)) < 0.98 * len(encode(photo))


def test_orientation_profile_and_comment_are_kept() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    out = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture(60, 90)).save(
        out, "JPEG", progressive=True, icc_profile=profile, exif=exif, comment=b"kept"
    )
    baseline = custom_op.to_baseline(tensor(out.getvalue()))
    assert custom_op.jpeg_headers([baseline]).tolist() == [[60, 90, 6]]
    image = Image.open(io.BytesIO(bytes(baseline.numpy())))
    assert "progressive" not in image.info
    assert image.info["icc_profile"] == profile
    assert image.info["comment"] == b"kept"


@pytest.mark.parametrize("adobe", [0, 1])
def test_cmyk_file_keeps_its_whole(adobe: int) -> None:
    four = picture(40, 60)[:, :, [0, 1, 2, 0]]
    data = tensor(encode(four, "4:4:4", adobe=adobe, progressive=True))
    baseline = custom_op.to_baseline(data)
    assert torch.equal(whole(baseline), whole(data))
    assert not torch.equal(baseline, data)


def test_truncated_file_is_refused() -> None:
    good = encode(picture(40, 60), progressive=True)
    for broken in (good[:-200], good[: len(good) // 2]):
        with pytest.raises(custom_op.JpegError, match="truncated"):
            custom_op.to_baseline(tensor(broken))


def test_progressive_file_without_its_last_scans_keeps_its_pixels_or_is_refused() -> None:
    """libjpeg estimates missing coefficients, which a baseline file could not hold."""
    complete = encode(picture(75, 130), quality=80, progressive=True)
    scans = [at for marker, at in markers(complete) if marker == 0xDA]
    refused = []
    for count in range(1, len(scans)):
        data = tensor(complete[: scans[count]] + b"\xff\xd9")
        try:
            baseline = custom_op.to_baseline(data)
        except custom_op.JpegError as error:
            assert "would have other pixels" in str(error)
            refused.append(count)
        else:
            assert torch.equal(whole(baseline), whole(data))
    assert refused and 1 in refused
