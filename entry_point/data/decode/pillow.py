"""Pillow decodes whole images of any format, and torchvision makes the samples.

It is how samples are usually made: the baseline, the reference of the operator's pixels, and what
decodes the images that the operator does not.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.augment_reference import augmented
from entry_point.data.decode.decoder import Decoded, Decoder, Opened
from entry_point.data.plan.crops import CropPlan
from entry_point.data.plan.samples import Ints, rows
from entry_point.data.sources.source import Encoded
from entry_point.data.spans import span

_START_OF_JPEG = b"\xff\xd8\xff"
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


@dataclass(frozen=True)
class PillowDecoder:
    """Decodes images of `formats`, by Pillow's names; None: of any."""

    formats: tuple[str, ...] | None = None
    uses_indexes = False

    def open(self, encoded: Encoded) -> OpenedPhotos:
        """Decodes the whole images."""
        damage: dict[int, str] = {}
        photos = [_open(encoded.file(i), self.formats, damage, i) for i in range(len(encoded))]
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


def _open(
    file: Tensor, formats: tuple[str, ...] | None, damage: dict[int, str], i: int
) -> Image.Image:
    """The whole upright image; one black pixel if it cannot be decoded."""
    try:
        with span("decode with Pillow"):
            image = Image.open(io.BytesIO(file.numpy().data), formats=formats)
            return opaque(_upright(image))
    except UnidentifiedImageError:
        damage[i] = "not an image in a format that Pillow reads"
    except _ERRORS as error:
        damage[i] = str(error)
    return Image.new("RGB", (1, 1))


def _upright(image: Image.Image) -> Image.Image:
    """As ImageOps.exif_transpose, which also rewrites the EXIF and fails on malformed tags."""
    image.load()
    turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if turn is None else image.transpose(turn)


def opaque(image: Image.Image) -> Image.Image:
    """RGB; what is transparent shows the background, not the color that the file has there."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    whole = Image.new("RGB", image.size, BACKGROUND)
    layer = image.convert("RGBA")
    whole.paste(layer, mask=layer)
    return whole


# Images of any format beside JPEGs


@dataclass(frozen=True)
class AnyFormat:
    """Leaves JPEGs to another decoder; Pillow decodes other formats, and the JPEGs it refuses."""

    jpegs: Decoder

    @property
    def uses_indexes(self) -> bool:
        return self.jpegs.uses_indexes

    def open(self, encoded: Encoded) -> OpenedMixture:
        jpegs, others = list[int](), list[int]()
        for i in range(len(encoded)):
            is_jpeg = encoded.file(i)[:3].numpy().tobytes() == _START_OF_JPEG
            (jpegs if is_jpeg else others).append(i)
        parts = ((jpegs, self.jpegs), (others, PillowDecoder()))
        opened = [(at, decoder.open(encoded.only(at))) for at, decoder in parts if at]
        return OpenedMixture(encoded, set(jpegs), opened)

    def close(self) -> None:
        self.jpegs.close()


@dataclass(frozen=True)
class OpenedMixture:
    """See Opened."""

    encoded: Encoded
    jpegs: set[int]
    parts: list[tuple[list[int], Opened]]
    """Positions in the batch, and their images."""

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        sizes = np.empty((2, len(self.encoded)), np.int64)
        for positions, opened in self.parts:
            sizes[:, positions] = opened.sizes
        return sizes[0], sizes[1]

    def decode(self, plan: CropPlan, allocate: Allocate) -> Decoded:
        each = len(plan) // len(self.encoded)
        made = [(at, opened.decode(plan.of(at, each), allocate)) for at, opened in self.parts]
        refused = sorted(at[i] for at, decoded in made for i in decoded.damage)
        if again := [i for i in refused if i in self.jpegs]:
            photos = PillowDecoder().open(self.encoded.only(again))
            made.append((again, photos.decode(plan.of(again, each), allocate)))
        return made[0][1] if len(made) == 1 else _joined(made, plan, each)


def _joined(made: Sequence[tuple[list[int], Decoded]], plan: CropPlan, each: int) -> Decoded:
    """One batch; of an image that was decoded twice, the second result."""
    first, shape = made[0][1].images, (len(plan), 3, plan.side, plan.side)
    images = torch.empty(
        shape, dtype=torch.uint8, device=first.device, memory_format=torch.channels_last
    )
    damage: dict[int, str] = {}
    for positions, decoded in made:
        images[torch.from_numpy(rows(positions, each))] = decoded.images.to(first.device)
        for i in positions:
            damage.pop(i, None)
        damage |= {positions[i]: reason for i, reason in decoded.damage.items()}
    return Decoded(images, damage, sum(decoded.stale_indexes for _, decoded in made))
