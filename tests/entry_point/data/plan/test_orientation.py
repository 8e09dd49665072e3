import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from entry_point.data.plan.orientation import stored_box, upright, upright_size

ORIENTATIONS = range(1, 9)


def _with_exif(stored: np.ndarray, orientation: int) -> Image.Image:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(stored).save(file, "PNG", exif=exif)
    return Image.open(file)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_upright_turns_as_pillow_does(orientation: int) -> None:
    stored = np.arange(5 * 7, dtype=np.uint8).reshape(5, 7)
    reference = np.array(ImageOps.exif_transpose(_with_exif(stored, orientation)))
    np.testing.assert_array_equal(upright(torch.from_numpy(stored), orientation), reference)
    assert upright_size(np.array(5), np.array(7), np.array(orientation)) == reference.shape


@given(st.data(), st.integers(1, 20), st.integers(1, 20), st.sampled_from(ORIENTATIONS))
def test_cropping_then_turning_equals_turning_then_cropping(
    data: st.DataObject, stored_height: int, stored_width: int, orientation: int
) -> None:
    stored = torch.arange(stored_height * stored_width).reshape(stored_height, stored_width)
    whole = upright(stored, orientation)
    height, width = whole.shape
    box_height = data.draw(st.integers(1, height))
    box_width = data.draw(st.integers(1, width))
    top = data.draw(st.integers(0, height - box_height))
    left = data.draw(st.integers(0, width - box_width))
    y, x, h, w = stored_box((top, left, box_height, box_width), height, width, orientation)
    cropped = upright(stored[y : y + h, x : x + w], orientation)
    assert torch.equal(cropped, whole[top : top + box_height, left : left + box_width])
