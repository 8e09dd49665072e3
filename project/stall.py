"""The published stall workload as augmentations of your own: `experiment=stall`.

A random mask, then YCbCr: little work in a batch on the device, much in Python for each sample.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import conv2d

MASKED = 0.25


class Stall:
    """Masks a batch and turns it into YCbCr, on the device: `augment.per=batch`."""

    def __call__(self, images: Tensor) -> Tensor:
        """RGB from 0 to 1, float `(N, 3, S, S)` -> YCbCr from 0 to 1 of the same type.

        It needs `data.mean=[0,0,0] data.std=[1,1,1]`.
        """
        draws = torch.rand(len(images), 1, *images.shape[2:], device=images.device)
        return masked_ycbcr(images.float(), dilated(draws < MASKED)).to(images.dtype)


class StallSample:
    """The same where each sample is decoded, as published: `augment.per=sample`."""

    def __call__(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """RGB, uint8 `(3, S, S)` -> YCbCr, uint8 `(3, S, S)`."""
        draws = torch.rand(1, *image.shape[1:], generator=generator)
        ycbcr = masked_ycbcr(image.float() / 255, dilated(draws < MASKED))
        return (255 * ycbcr).round_().to(torch.uint8)


def dilated(mask: Tensor) -> Tensor:
    """The masked pixels and their neighbors above, below, left and right: bool `(..., H, W)`."""
    wide = mask.clone()
    wide[..., 1:, :] |= mask[..., :-1, :]
    wide[..., :-1, :] |= mask[..., 1:, :]
    wide[..., 1:] |= mask[..., :-1]
    wide[..., :-1] |= mask[..., 1:]
    return wide


def masked_ycbcr(rgb: Tensor, mask: Tensor) -> Tensor:
    """JFIF's full-range YCbCr, float32 `(..., 3, H, W)` from 0 to 1, with black where `mask` is true.

    `rgb` is of the same shape and range, `mask` is bool `(..., 1, H, W)`.
    """
    ycbcr = conv2d(rgb * ~mask, *_jfif(rgb.device))
    return ycbcr.clamp_(0, 1)  # pure red and pure blue would be 255.5 of 255


@cache  # to make a constant on a GPU, the host waits for it
def _jfif(device: torch.device) -> tuple[Tensor, Tensor]:
    """The matrix, as a convolution of single pixels, and what to add: 128 of 255 is no color."""
    matrix = torch.tensor(
        [
            [0.299, 0.587, 0.114],
            [-0.168735892, -0.331264108, 0.5],
            [0.5, -0.418687589, -0.081312411],
        ],
        device=device,
    )
    return matrix[:, :, None, None], torch.tensor([0, 128 / 255, 128 / 255], device=device)
