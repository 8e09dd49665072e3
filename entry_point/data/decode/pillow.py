"""Pillow decodes whole images of every format, and torchvision makes the samples.

It is how samples are usually made: the baseline, the reference of the operator's pixels, and what
decodes the images that are no JPEGs. The rules for those are here: an image is its first frame,
upright, with 8 bits for each of red, green and blue.
"""

from __future__ import annotations

import contextlib
import io
import struct
from dataclasses import dataclass

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.augment_reference import augmented
from entry_point.data.decode.decoder import Decoded
from entry_point.data.plan.crops import CropPlan
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.source import Encoded
from entry_point.data.spans import span

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "PPM", "TIFF")
"""Pillow's names of IMAGE_SUFFIXES. Its other formats are rare or slow; some start programs."""
MOST_PIXELS = 89_478_485
"""256 MB of RGB, where Pillow starts to warn of decompression bombs."""
_BIG_TIFF, _MOST_TAGS = 43, 4096
_PARTS_OF_TIFF, _MOST_PARTS = (273, 324), 100_000
"""The tags that list the strips or tiles. Photos have at most a strip for each row."""
_ERRORS = (OSError, SyntaxError, ValueError, RuntimeError, Image.DecompressionBombError)
"""Exceptions that Pillow raises for files it cannot read."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> the transpose that makes the image upright."""

BACKGROUND = "white"
"""Behind transparent pixels: that of most pages that such images were made for."""


class PillowDecoder:
    """Decodes images of all FORMATS."""

    uses_indexes = False

    def open(self, encoded: Encoded) -> OpenedPhotos:
        """Decodes the whole images."""
        damage: dict[int, str] = {}
        photos = [_open(encoded.file(i), damage, i) for i in range(len(encoded))]
        return OpenedPhotos(photos, damage | encoded.unreadable)

    def close(self) -> None:
        """There is nothing to end."""


@dataclass(frozen=True)
class OpenedPhotos:
    """See Opened."""

    photos: list[Image.Image]
    damage: dict[int, str]

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        widths, heights = np.array([photo.size for photo in self.photos]).T
        return heights, widths

    def decode(self, plan: CropPlan, allocate: Allocate) -> Decoded:
        images = empty_images(allocate, len(plan), plan.side)
        each = len(plan) // len(self.photos)
        for sample, out in enumerate(images):
            _cut(self.photos[sample // each], plan, sample, out)
        return Decoded(images, self.damage)


def _cut(photo: Image.Image, plan: CropPlan, sample: int, out: Tensor) -> None:
    with span("resize"):
        size, box = [plan.side, plan.side], plan.boxes[sample].tolist()
        cut = functional.resized_crop(photo, *box, size, InterpolationMode.BILINEAR)
    with span("collate"):
        out.copy_(functional.pil_to_tensor(functional.hflip(cut) if plan.flips[sample] else cut))
    if plan.operations is not None:
        with span("augment"):
            out.copy_(augmented(out, plan.operations[sample]))


def _open(file: Tensor, damage: dict[int, str], i: int) -> Image.Image:
    """The whole upright image; one black pixel if it cannot be decoded."""
    try:
        with span("decode with Pillow"):
            return rgb(upright(open_image(file.numpy().data)))[0]
    except _ERRORS as error:
        damage[i] = str(error)
    return Image.new("RGB", (1, 1))


class UnusableImageError(ValueError):
    """An image that a rule of this file refuses; the message says why."""


class TooManyPixelsError(UnusableImageError):
    """An image that would take too much memory."""


def open_image(content: bytes | bytearray | memoryview) -> Image.Image:
    """The first frame, not decoded yet.

    Raises UnusableImageError, and many other types for a damaged file.
    """
    if not len(content):
        raise UnusableImageError("empty file")
    _refuse_many_parts(content)
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError as error:
        must = f"not an image in one of the formats {', '.join(FORMATS)}"
        raise UnusableImageError(must) from error
    except Image.DecompressionBombError as error:  # more than twice Pillow's limit
        raise TooManyPixelsError(f"more than {MOST_PIXELS} pixels") from error
    if image.width * image.height > MOST_PIXELS:
        size = f"{image.width}x{image.height}"
        raise TooManyPixelsError(f"{size}: more than {MOST_PIXELS} pixels")
    return image


def _refuse_many_parts(content: bytes | bytearray | memoryview) -> None:
    """Raise TooManyPixelsError for a TIFF of too many strips or tiles: Pillow makes an object of
    each, 90 times as large as in the file, before it looks at the number of pixels."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(content[:2]))
    if order is None:
        return
    with contextlib.suppress(struct.error):  # too short: Pillow says so
        is_big = struct.unpack_from(f"{order}H", content, 2)[0] == _BIG_TIFF
        place, number, entry = (
            order + each for each in (("4xQ", "Q", "HHQ8x") if is_big else ("I", "H", "HHI4x"))
        )
        (start,) = struct.unpack_from(place, content, 4)
        (entries,) = struct.unpack_from(number, content, start)
        first, size = start + struct.calcsize(number), struct.calcsize(entry)
        for i in range(min(entries, _MOST_TAGS)):
            tag, _, count = struct.unpack_from(entry, content, first + i * size)
            if tag in _PARTS_OF_TIFF and count > _MOST_PARTS:
                reason = f"a TIFF of {count} strips or tiles: more than {_MOST_PARTS}"
                raise TooManyPixelsError(reason)


def upright(image: Image.Image) -> Image.Image:
    """As ImageOps.exif_transpose, which also rewrites the EXIF and fails on malformed tags."""
    image.load()
    turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if turn is None else image.transpose(turn)


def rgb(image: Image.Image) -> tuple[Image.Image, str]:
    """The image with 8 bits for each of red, green and blue; and what it lost, if anything.

    16 bits are divided by 257, so that white stays white. What is transparent shows the background,
    not the color that the file has there. Raises UnusableImageError for 32 bits per value.
    """
    # Older releases of Pillow read 16-bit PNGs as 32-bit integers.
    if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PNG"):
        levels = np.rint(np.asarray(image, dtype=np.float32) / 257).astype(np.uint8)
        return Image.fromarray(levels).convert("RGB"), "16 bits became 8"
    if image.mode in ("I", "F"):
        raise UnusableImageError(
            "has 32 bits per pixel without a defined range: convert it to 8 or 16"
        )
    if not image.has_transparency_data:  # `convert` copies also where there is nothing to do
        return image if image.mode == "RGB" else image.convert("RGB"), ""
    whole = Image.new("RGB", image.size, BACKGROUND)
    layer = image.convert("RGBA")
    whole.paste(layer, mask=layer)
    return whole, f"transparency replaced by {BACKGROUND}"
