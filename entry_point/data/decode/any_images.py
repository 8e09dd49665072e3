"""Images of any format: the batch operator decodes JPEGs, Pillow all others."""

from __future__ import annotations

from torch import Tensor

from entry_point.data.decode import operator_batch as batch_images
from entry_point.data.decode import pillow_images
from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.image_sizes import upright_sizes
from entry_point.data.decode.reading import read_files
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.sources.source import Source

_JPEG = b"\xff\xd8\xff"


def any_images(
    source: Source, planner: CropPlanner, epoch: int, indices: Ints, allocate: Allocate
) -> tuple[Tensor, dict[int, str]]:
    """See MakeImages."""
    files, unreadable = read_files(source, indices)
    images = empty_images(allocate, len(indices), planner.data.image_size)
    jpegs = [place for place, file in enumerate(files) if _is_jpeg(file)]
    refused: dict[int, str] = {}
    if jpegs:
        heights, widths = upright_sizes(source, [files[i] for i in jpegs], indices[jpegs])
        images[jpegs], refused = batch_images.decoded(
            [files[i] for i in jpegs], planner, epoch, indices[jpegs], heights, widths, allocate
        )
    done = {place for i, place in enumerate(jpegs) if i not in refused}
    others = [place for place in range(len(indices)) if place not in done]
    damage: dict[int, str] = {}
    if others:
        images[others], failed = pillow_images.decoded(
            [files[i] for i in others], planner, epoch, indices[others], allocate
        )
        damage = {others[i]: reason for i, reason in failed.items()}
    return images, damage | unreadable


def _is_jpeg(file: Tensor) -> bool:
    return file[: len(_JPEG)].numpy().tobytes() == _JPEG
