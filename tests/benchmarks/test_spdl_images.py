"""The crop that FFmpeg cuts: stored pixels, before EXIF turns them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.pipelines.spdl_images import stored_box
from tests.entry_point.data.plan.test_orientation import ORIENTATIONS, upright


@given(st.data(), st.integers(1, 20), st.integers(1, 20), st.sampled_from(ORIENTATIONS))
def test_cropping_then_turning_equals_turning_then_cropping(
    data: st.DataObject, stored_height: int, stored_width: int, orientation: int
) -> None:
    pixels = np.arange(stored_height * stored_width) % 251
    stored = pixels.astype(np.uint8).reshape(stored_height, stored_width)
    whole = upright(stored, orientation)
    height, width = whole.shape
    box_height = data.draw(st.integers(1, height))
    box_width = data.draw(st.integers(1, width))
    top = data.draw(st.integers(0, height - box_height))
    left = data.draw(st.integers(0, width - box_width))
    y, x, h, w = stored_box((top, left, box_height, box_width), height, width, orientation)
    cropped = upright(stored[y : y + h, x : x + w], orientation)
    assert np.array_equal(cropped, whole[top : top + box_height, left : left + box_width])
