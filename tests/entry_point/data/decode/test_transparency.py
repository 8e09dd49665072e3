"""What is transparent shows a white background, in prediction and serving as in packing."""

import io

import pytest
import torch
from PIL import Image

from entry_point.data.decode.pillow import read_photo

RED = (255, 0, 0)


def decoded(image: Image.Image, **options: object) -> list[object]:
    """The colors of an image's pixels, from left to right."""
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    content = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    photo = read_photo(content)
    assert photo.mode == "RGB"
    return [photo.getpixel((x, 0)) for x in range(photo.width)]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_pixels_are_mixed_with_white_by_their_opacity(mode: str) -> None:
    image = Image.new(mode, (3, 1))
    for x, alpha in enumerate((0, 128, 255)):
        image.putpixel((x, 0), (*RED, alpha) if mode == "RGBA" else (76, alpha))
    clear, half, full = decoded(image)
    assert clear == (255, 255, 255)
    assert full == (RED if mode == "RGBA" else (76, 76, 76))
    assert half == tuple(round((255 * 127 + c * 128) / 255) for c in full)


def test_a_transparent_color_of_a_palette_is_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([0, 255, 0, *RED])
    image.putpixel((1, 0), 1)
    assert decoded(image, transparency=0) == [(255, 255, 255), RED]


def test_opaque_images_stay_as_they_are() -> None:
    assert decoded(Image.new("RGB", (1, 1), RED)) == [RED]
    assert decoded(Image.new("L", (1, 1), 7)) == [(7, 7, 7)]
