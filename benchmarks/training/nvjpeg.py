"""Samples from nvJPEG, which gets only the bytes of the crop."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2 import functional

from custom_op import trim_jpeg
from entry_point.data.decode.allocation import Allocate
from entry_point.data.decode.read_batch import upright_sizes
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.sources.source import Source


@dataclass(frozen=True)
class TrimmedOn:
    """Makes images on a device from undamaged files that are stored upright."""

    device: torch.device

    def __call__(
        self, source: Source, planner: CropPlanner, epoch: int, indices: Ints, _allocate: Allocate
    ) -> tuple[Tensor, dict[int, str]]:
        """Pixels, uint8 (N, 3, image_size, image_size), channels_last, on the device."""
        side = planner.data.image_size
        files = [source.read(int(index)) for index in indices]
        boxes, flips = planner.plan(epoch, indices, *upright_sizes(source, files, indices))
        trimmed = [trim_jpeg(file, *box) for file, box in zip(files, boxes.tolist(), strict=True)]
        decoded = decode_jpeg([jpeg for jpeg, _ in trimmed], ImageReadMode.RGB, self.device)
        images = torch.empty((len(files), side, side, 3), dtype=torch.uint8, device=self.device)
        images = images.permute(0, 3, 1, 2)
        for i, (pixels, (_, (top, left))) in enumerate(zip(decoded, trimmed, strict=True)):
            height, width = boxes[i, 2:].tolist()
            crop = pixels[:, top : top + height, left : left + width]
            sample = functional.resize(crop, [side, side], antialias=True)
            images[i] = functional.hflip(sample) if flips[i] else sample
        return images, {}
