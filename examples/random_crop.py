"""Random crops of JPEGs that are not decoded yet: the part that the other examples share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.transforms.v2 import RandomResizedCrop

from custom_op import decode_crop_resize_batch, jpeg_headers


def random_boxes(jpegs: Sequence[Tensor], scale: Sequence[float] = (0.08, 1.0)) -> Tensor:
    """Return the box of torchvision's RandomResizedCrop for each image, from its header alone.

    Args:
        jpegs: uint8 `(bytes,)` tensors.
        scale: smallest and largest share of the image's area.

    Returns:
        int64 `(N, 4)`: top, left, height, width.
    """
    crop = RandomResizedCrop(1, scale=scale)
    boxes = []
    for height, width, orientation in jpeg_headers(jpegs).tolist():
        # Orientations from 5 on swap the sides.
        size = (height, width) if orientation < 5 else (width, height)
        box = crop.make_params([torch.empty(size, device="meta")])
        boxes.append([box[side] for side in ("top", "left", "height", "width")])
    return torch.tensor(boxes)


def decode_random_crops(jpegs: Sequence[Tensor], size: int) -> Tensor:
    """Return a uint8 `(N, 3, size, size)` batch of random crops, half of them mirrored."""
    flip = torch.rand(len(jpegs)) < 0.5
    return decode_crop_resize_batch(jpegs, random_boxes(jpegs), size, flip=flip).images
