"""The usual way to make samples: Pillow decodes the whole image, torchvision crops it."""

from __future__ import annotations

import io

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.augment_reference import augmented
from entry_point.data.decode.made_images import MadeImages
from entry_point.data.decode.read_batch import read_files
from entry_point.data.plan.crops import CropPlan, CropPlanner, Ints
from entry_point.data.sources.source import Source
from entry_point.data.spans import span

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


def pillow_images(
    source: Source, planner: CropPlanner, epoch: int, indices: Ints, allocate: Allocate
) -> MadeImages:
    """See MakeImages."""
    files, unreadable = read_files(source, indices)
    images, damage = decode_files(files, planner, epoch, indices, allocate)
    return MadeImages(images, damage | unreadable)


def decode_files(
    files: list[Tensor],
    planner: CropPlanner,
    epoch: int,
    indices: Ints,
    allocate: Allocate,
    formats: tuple[str, ...] | None = None,
) -> tuple[Tensor, dict[int, str]]:
    """As `pillow_images`, from encoded images.

    `formats` are Pillow's names of those to read; None: any.
    """
    damage: dict[int, str] = {}
    photos = [_open(file, formats, damage, i) for i, file in enumerate(files)]
    widths, heights = np.array([photo.size for photo in photos]).T
    plan = planner.plan(epoch, indices, heights, widths)
    images = empty_images(allocate, plan.flips.shape, plan.side)
    for i, photo in enumerate(photos):
        for at in plan.of(i):
            _cut(photo, plan, at, images[at])
    return images, damage


def _cut(photo: Image.Image, plan: CropPlan, at: tuple[int, ...], out: Tensor) -> None:
    with span("resize"):
        size = [plan.side, plan.side]
        box = plan.boxes[at].tolist()
        sample = functional.resized_crop(photo, *box, size, InterpolationMode.BILINEAR)
    with span("collate"):
        if plan.flips[at]:
            sample = functional.hflip(sample)
        out.copy_(functional.pil_to_tensor(sample))
    if plan.operations is not None:
        with span("augment"):
            out.copy_(augmented(out, plan.operations[at]))


def _open(
    file: Tensor, formats: tuple[str, ...] | None, damage: dict[int, str], i: int
) -> Image.Image:
    """The whole upright image; one black pixel if it cannot be decoded."""
    try:
        with span("decode with Pillow"):
            image = Image.open(io.BytesIO(file.numpy().data), formats=formats)
            return _upright(image).convert("RGB")
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
