"""The single-image operator: it decodes only the crop; torch resizes and augments it."""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torchvision.transforms.v2 import functional

from custom_op import JpegError, decode_and_crop_jpeg, jpeg_headers
from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.augment_reference import augmented
from entry_point.data.decode.read_batch import nth, read_files, side_indexes
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.plan.orientation import stored_box, upright, upright_size
from entry_point.data.sources.source import Source
from entry_point.data.spans import span


def operator_single_images(
    source: Source, planner: CropPlanner, epoch: int, indices: Ints, allocate: Allocate
) -> tuple[Tensor, dict[int, str]]:
    """See MakeImages."""
    side = planner.side(epoch)
    files, unreadable = read_files(source, indices)
    # A file without a readable header counts as 1 x 1 and fails to decode.
    headers = np.maximum(jpeg_headers(files).numpy(), 1)
    heights, widths = upright_size(*headers.T)
    boxes, flips = planner.plan(epoch, indices, heights, widths)
    operations = planner.augmentation(epoch, indices)
    images, indexes = empty_images(allocate, len(files), side), side_indexes(source, indices)
    damage: dict[int, str] = {}
    for i, (file, turn) in enumerate(zip(files, headers[:, 2].tolist(), strict=True)):
        box = stored_box(boxes[i].tolist(), int(heights[i]), int(widths[i]), turn)
        try:
            with span("decode_and_crop_jpeg"):
                index = None if indexes is None else nth(indexes, i)
                crop = decode_and_crop_jpeg(file, *box, index=index)
        except JpegError as error:
            damage[i] = str(error)
            continue
        with span("resize"):
            sample = functional.resize(upright(crop, turn), [side, side], antialias=True)
        sample = functional.hflip(sample) if flips[i] else sample
        if operations is not None:
            with span("augment"):
                sample = augmented(sample, operations[i])
        with span("collate"):
            images[i] = sample
    return images, damage | unreadable
