"""Images of any format: the batch operator decodes JPEGs, Pillow all others."""

from __future__ import annotations

from torch import Tensor

from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.made_images import MadeImages
from entry_point.data.decode.operator_batch import decode_jpegs
from entry_point.data.decode.pillow_images import decode_files
from entry_point.data.decode.read_batch import read_files
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.sources.source import Source

_JPEG = b"\xff\xd8\xff"


def mixed_format_images(
    source: Source, planner: CropPlanner, epoch: int, indices: Ints, allocate: Allocate
) -> MadeImages:
    """See MakeImages. One view of each image."""
    files, unreadable = read_files(source, indices)
    images = empty_images(allocate, (len(indices),), planner.side(epoch))
    jpegs = [i for i, file in enumerate(files) if _is_jpeg(file)]
    refused: dict[int, str] = {}
    if jpegs:
        made = decode_jpegs(
            [files[i] for i in jpegs], source, planner, epoch, indices[jpegs], allocate
        )
        images[jpegs], refused = made.images, made.damage
    done = {i for place, i in enumerate(jpegs) if place not in refused}
    others = [i for i in range(len(indices)) if i not in done]
    damage: dict[int, str] = {}
    if others:
        images[others], failed = decode_files(
            [files[i] for i in others], planner, epoch, indices[others], allocate
        )
        damage = {others[place]: reason for place, reason in failed.items()}
    return MadeImages(images, damage | unreadable)


def _is_jpeg(file: Tensor) -> bool:
    return file[: len(_JPEG)].numpy().tobytes() == _JPEG
