import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from entry_point.data.plan.crops import upright_size

ORIENTATIONS = range(1, 9)


def _with_exif(stored: np.ndarray, orientation: int) -> Image.Image:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(stored).save(file, "PNG", exif=exif)
    return Image.open(file)


def upright(stored: np.ndarray, orientation: int) -> np.ndarray:
    """As Pillow turns it."""
    return np.array(ImageOps.exif_transpose(_with_exif(stored, orientation)))


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_the_upright_size_is_that_of_the_image_that_pillow_turns(orientation: int) -> None:
    turned = upright(np.zeros((5, 7), np.uint8), orientation)
    assert upright_size(np.array(5), np.array(7), np.array(orientation)) == turned.shape
