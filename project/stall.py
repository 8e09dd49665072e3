"""The published stall workload as augmentations of your own: `experiment=stall`.

A random mask, then YCbCr: little work in a batch on the device, much in Python for each sample.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d

MASKED = 64
"""Pixels are masked with a probability of this many 256ths."""


class Stall:
    """Masks a batch and turns it into YCbCr, on the device: `augment.per=batch`."""

    def __init__(self) -> None:
        self._matrix, self._offset = jfif()

    def __call__(self, images: Tensor) -> Tensor:
        """RGB from 0 to 1, float `(N, 3, S, S)` -> YCbCr from 0 to 1 of the same type.

        It needs `data.mean=[0,0,0] data.std=[1,1,1]`.
        """
        device = images.device
        # Only the first step copies them, and does not wait for the device.
        self._matrix = self._matrix.to(device, non_blocking=True)
        self._offset = self._offset.to(device, non_blocking=True)
        drawn = random_bytes((len(images), 1, *images.shape[2:]), device)
        masked = images.float() * ~dilated(drawn < MASKED)
        return ycbcr(masked, self._matrix, self._offset).to(images.dtype)


class StallSample:
    """The same where each sample is decoded, as published: `augment.per=sample`."""

    def __init__(self) -> None:
        self._matrix, self._offset = jfif()

    def __call__(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """RGB, uint8 `(3, S, S)` -> YCbCr, uint8 `(3, S, S)`."""
        drawn = random_bytes((1, *image.shape[1:]), image.device, generator)
        masked = image.float() / 255 * ~dilated(drawn < MASKED)
        return (255 * ycbcr(masked, self._matrix, self._offset)).round_().to(torch.uint8)


def random_bytes(
    shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None = None
) -> Tensor:
    """Uniform uint8 of a shape; drawing words of eight bytes takes a third of the time."""
    count = math.prod(shape)
    words = torch.empty(-(-count // 8), dtype=torch.int64, device=device)
    words.random_(-(2**63), None, generator=generator)
    return words.view(torch.uint8)[:count].view(shape)


def dilated(mask: Tensor) -> Tensor:
    """Returns the masked pixels and their neighbors above, below, left and right: bool `(..., H,
    W)`."""
    wide = mask.clone()
    wide[..., 1:, :] |= mask[..., :-1, :]
    wide[..., :-1, :] |= mask[..., 1:, :]
    wide[..., 1:] |= mask[..., :-1]
    wide[..., :-1] |= mask[..., 1:]
    return wide


def jfif() -> tuple[Tensor, Tensor]:
    """Returns the matrix of full-range YCbCr, as a convolution of single pixels, and the offset.

    On a scale from 0 to 1, 128 of 255 is no color.
    """
    matrix = [
        [0.299, 0.587, 0.114],
        [-0.168735892, -0.331264108, 0.5],
        [0.5, -0.418687589, -0.081312411],
    ]
    pixel = [[[[value]] for value in row] for row in matrix]
    return torch.tensor(pixel), torch.tensor([0, 128 / 255, 128 / 255])


def ycbcr(rgb: Tensor, matrix: Tensor, offset: Tensor) -> Tensor:
    """RGB, float32 `(..., 3, H, W)` from 0 to 1 -> YCbCr of the same shape and range."""
    return conv2d(rgb, matrix, offset).clamp_(0, 1)  # pure red and blue would be 255.5 of 255
