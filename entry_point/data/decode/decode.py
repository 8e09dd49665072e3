"""Decodes the images of a batch: JPEGs in one call of the operator, images of other formats with
Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from custom_op import JpegError, decode_crop_resize_batch, jpeg_headers
from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.pillow import decode_with_pillow, upright_size_of
from entry_point.data.plan.crops import CropPlan, upright_size
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.source import Encoded

_START_OF_JPEG = b"\xff\xd8\xff"


class BatchDecoder(Protocol):
    """Makes the samples of a batch. Threads may share it."""

    @property
    def has_threads(self) -> bool:
        """Whether the decoder uses its own threads, rather than the calling thread."""
        ...

    @property
    def uses_indexes(self) -> bool:
        """Whether the decoder can use side indexes to start near the crop."""
        ...

    def sizes(self, encoded: Encoded) -> tuple[Ints, Ints]:
        """Returns upright heights and widths in pixels, int64 (N,); 1 x 1 if an image cannot be
        decoded."""
        ...

    def decode(
        self, encoded: Encoded, plan: CropPlan, allocate: Allocate
    ) -> tuple[Tensor, dict[int, str]]:
        """Returns the plan's samples, and why images cannot be decoded, by position.

        Samples are uint8 (M, 3, side, side), channels_last. Each image has the same number of
        them, and they are adjacent. Samples of damaged images are undefined.
        """
        ...

    def close(self) -> None:
        """End the decoder's threads, if it has any."""
        ...


class OperatorDecoder:
    """Decodes, crops, orients, resizes, flips and augments in one call, with the GIL released."""

    has_threads, uses_indexes = False, True

    def __init__(self, gray_bits: int = 16) -> None:
        """`gray_bits`: see DataConfig."""
        self._gray_bits = gray_bits

    def sizes(self, encoded: Encoded) -> tuple[Ints, Ints]:
        """See BatchDecoder."""
        return upright_sizes(encoded)

    def decode(
        self, encoded: Encoded, plan: CropPlan, allocate: Allocate
    ) -> tuple[Tensor, dict[int, str]]:
        """See BatchDecoder. Each file is parsed once for all of its samples."""
        files, shape = encoded.files, (len(encoded), len(plan) // len(encoded))
        images = empty_images(allocate, len(plan), plan.side)
        boxes = torch.from_numpy(plan.boxes).unflatten(0, shape)
        operations = None if plan.operations is None else torch.from_numpy(plan.operations)
        batch = decode_crop_resize_batch(
            files,
            boxes,
            plan.side,
            indexes=encoded.indexes,
            flip=torch.from_numpy(plan.flips).unflatten(0, shape),
            augment=None if operations is None else operations.unflatten(0, shape),
            out=images.unflatten(0, shape),
            mask_errors=True,
            make_indexes=encoded.keep_indexes is not None,
        )
        if encoded.keep_indexes is not None:
            encoded.keep_indexes(batch.new_indexes)
        failed = batch.failed.nonzero().flatten().tolist()
        others = other_formats(files, failed)
        damage = {i: why_refused(files[i], boxes[i]) for i in failed if i not in others}
        damage |= decode_others(files, others, plan, images, self._gray_bits)
        return images, damage | encoded.unreadable

    def close(self) -> None:
        """Do nothing: this decoder has no threads."""


def is_jpeg(file: Tensor) -> bool:
    return file.numpy()[:3].tobytes() == _START_OF_JPEG


def other_formats(files: Sequence[Tensor], positions: Sequence[int]) -> list[int]:
    """Returns the positions whose files are not JPEGs."""
    return [i for i in positions if not is_jpeg(files[i])]


def upright_sizes(encoded: Encoded) -> tuple[Ints, Ints]:
    """Returns heights and widths as `BatchDecoder.sizes` does, from the source or the headers."""
    if encoded.sizes is not None:
        return encoded.sizes
    headers = jpeg_headers(encoded.files).numpy()  # zeros where none can be read
    heights, widths = upright_size(*np.maximum(headers, 1).T)
    if others := other_formats(encoded.files, np.flatnonzero(headers[:, 0] == 0).tolist()):
        for i in others:
            heights[i], widths[i] = upright_size_of(encoded.files[i])
    return heights, widths


def decode_others(
    files: Sequence[Tensor], others: Sequence[int], plan: CropPlan, images: Tensor, gray_bits: int
) -> dict[int, str]:
    """Decode the files at positions `others` with Pillow, into the batch's `images` on the CPU.
    Returns why files cannot be decoded, by position."""
    if not others:
        return {}
    return decode_with_pillow(files, others, plan, images, gray_bits)


def why_refused(file: Tensor, boxes: Tensor) -> str:
    """Returns why the operator cannot decode `boxes`, int64 (V, 4), of a file; empty if it
    can."""
    try:
        decode_crop_resize_batch([file], boxes[None], 1)
    except JpegError as error:
        return str(error).removeprefix("image 0 of the batch: ").removeprefix("view 0: ")
    return ""
