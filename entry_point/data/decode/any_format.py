"""Batches of images of any format: JPEGs go to the decoder of the pipeline, others to Pillow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from entry_point.data.decode.allocation import Allocate, empty_images, reused_memory
from entry_point.data.decode.decoder import Decoded, Decoder, Opened
from entry_point.data.plan.crops import CropPlan
from entry_point.data.plan.samples import Ints, rows
from entry_point.data.sources.source import Encoded

_START_OF_JPEG = b"\xff\xd8\xff"


@dataclass(frozen=True)
class AnyFormat:
    """Leaves JPEGs to another decoder; Pillow decodes other formats."""

    jpegs: Decoder
    gray_bits: int = 16
    """See DataConfig."""

    @property
    def has_threads(self) -> bool:
        return self.jpegs.has_threads

    @property
    def uses_indexes(self) -> bool:
        return self.jpegs.uses_indexes

    def open(self, encoded: Encoded) -> Opened:
        jpegs = [i for i, file in enumerate(encoded.files) if is_jpeg(file)]
        if len(jpegs) == len(encoded):
            return self.jpegs.open(encoded)
        from entry_point.data.decode.pillow import PillowDecoder  # torchvision takes a second

        others = sorted({*range(len(encoded))} - {*jpegs})
        parts = [(jpegs, self.jpegs.open(encoded.only(jpegs)))] if jpegs else []
        parts.append((others, PillowDecoder(self.gray_bits).open(encoded.only(others))))
        return OpenedMixture(encoded, parts)

    def close(self) -> None:
        self.jpegs.close()


def is_jpeg(file: Tensor) -> bool:
    return file.numpy()[:3].tobytes() == _START_OF_JPEG


@dataclass(frozen=True)
class OpenedMixture:
    """See Opened."""

    encoded: Encoded
    parts: list[tuple[list[int], Opened]]
    """Positions in the batch, and their images."""

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        sizes = np.empty((2, len(self.encoded)), np.int64)
        for positions, opened in self.parts:
            sizes[:, positions] = opened.sizes
        return sizes[0], sizes[1]

    def decode(self, plan: CropPlan, allocate: Allocate) -> Decoded:
        if len(self.parts) == 1:
            return self.parts[0][1].decode(plan, allocate)
        count = len(self.encoded)
        each = len(plan) // count
        made = [(at, part.decode(plan.of(at, each), reused_memory)) for at, part in self.parts]
        device = made[0][1].images.device
        images = empty_images(allocate, len(plan), plan.side).to(device)
        damage: dict[int, str] = {}
        new = [torch.empty(0, dtype=torch.uint8)] * count
        for positions, decoded in made:
            images[torch.from_numpy(rows(positions, each))] = decoded.images.to(device)
            damage |= {positions[i]: reason for i, reason in decoded.damage.items()}
            # There is none, or one for each.
            for i, index in zip(positions, decoded.new_indexes, strict=False):
                new[i] = index
        return Decoded(images, damage, sum(decoded.stale_indexes for _, decoded in made), new)
