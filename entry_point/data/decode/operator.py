"""The batch operator: one call decodes, crops, turns, resizes, flips and augments all images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from custom_op import JpegError, decode_crop_resize_batch, jpeg_headers
from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.decoder import Decoded, Decoder
from entry_point.data.plan.crops import CropPlan, upright_size
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.source import Encoded


class OperatorDecoder(Decoder):
    """Decodes JPEGs, with the GIL released."""

    has_threads, uses_indexes = False, True

    def open(self, encoded: Encoded) -> OpenedJpegs:
        return OpenedJpegs(encoded, upright_sizes(encoded))


@dataclass(frozen=True)
class OpenedJpegs:
    """See Opened."""

    encoded: Encoded
    sizes: tuple[Ints, Ints]

    def decode(self, plan: CropPlan, allocate: Allocate) -> Decoded:
        """Each file is parsed once for all of its samples."""
        encoded, count = self.encoded, len(self.encoded)
        each = len(plan) // count
        images = empty_images(allocate, len(plan), plan.side)
        boxes = torch.from_numpy(plan.boxes).unflatten(0, (count, each))
        operations = None if plan.operations is None else torch.from_numpy(plan.operations)
        batch = decode_crop_resize_batch(
            encoded.files,
            boxes,
            plan.side,
            indexes=encoded.indexes,
            flip=torch.from_numpy(plan.flips).unflatten(0, (count, each)),
            augment=None if operations is None else operations.unflatten(0, (count, each)),
            out=images.unflatten(0, (count, each)),
            num_threads=1,
            mask_errors=True,
            make_indexes=encoded.makes_indexes,
        )
        # Stale indexes do not count if they are replaced.
        stale = 0 if encoded.makes_indexes else int(batch.stale.sum())
        positions = batch.failed.nonzero().flatten().tolist()
        damage = {i: why_refused(encoded.files[i], boxes[i]) for i in positions}
        return Decoded(images, damage | encoded.unreadable, stale, batch.new_indexes)


def upright_sizes(encoded: Encoded) -> tuple[Ints, Ints]:
    """See Opened.sizes; from the source, or from the JPEG headers."""
    if encoded.sizes is not None:
        return encoded.sizes
    # A file without a readable header counts as 1 x 1; the operator refuses to decode it, too.
    return upright_size(*np.maximum(jpeg_headers(encoded.files).numpy(), 1).T)


def why_refused(file: Tensor, boxes: Tensor) -> str:
    """Returns why the operator cannot decode these boxes of a file, int64 (V, 4); empty if it
    can."""
    try:
        decode_crop_resize_batch([file], boxes[None], 1, num_threads=1)
    except JpegError as error:
        return str(error).removeprefix("image 0 of the batch: ").removeprefix("view 0: ")
    return ""
