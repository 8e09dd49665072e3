"""The single-image operator: it decodes only the crop; torch resizes and augments it."""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torchvision.transforms.v2 import functional

from custom_op import JpegError, decode_and_crop_jpeg, jpeg_headers
from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.augment_reference import augmented
from entry_point.data.decode.made_images import MadeImages
from entry_point.data.decode.read_batch import nth, read_files, side_indexes
from entry_point.data.plan.crops import CropPlan, CropPlanner, Ints
from entry_point.data.plan.orientation import stored_box, upright, upright_size
from entry_point.data.sources.source import Source
from entry_point.data.spans import span


def operator_single_images(
    source: Source, planner: CropPlanner, epoch: int, indices: Ints, allocate: Allocate
) -> MadeImages:
    """See MakeImages."""
    files, unreadable = read_files(source, indices)
    # A file without a readable header counts as 1 x 1 and fails to decode.
    headers = np.maximum(jpeg_headers(files).numpy(), 1)
    heights, widths = upright_size(*headers.T)
    plan = planner.plan(epoch, indices, heights, widths)
    images = empty_images(allocate, plan.flips.shape, plan.side)
    indexes = side_indexes(source, indices)
    damage: dict[int, str] = {}
    for i, (file, turn) in enumerate(zip(files, headers[:, 2].tolist(), strict=True)):
        size = int(heights[i]), int(widths[i])
        index = None if indexes is None else nth(indexes, i)
        try:
            for at in plan.of(i):
                box = stored_box(plan.boxes[at].tolist(), *size, turn)
                with span("decode_and_crop_jpeg"):
                    crop = decode_and_crop_jpeg(file, *box, index=index)
                images[at] = _sample(upright(crop, turn), plan, at)
        except JpegError as error:
            damage[i] = str(error)
    return MadeImages(images, damage | unreadable)


def _sample(crop: Tensor, plan: CropPlan, at: tuple[int, ...]) -> Tensor:
    with span("resize"):
        sample = functional.resize(crop, [plan.side, plan.side], antialias=True)
    sample = functional.hflip(sample) if plan.flips[at] else sample
    if plan.operations is None:
        return sample
    with span("augment"):
        return augmented(sample, plan.operations[at])
