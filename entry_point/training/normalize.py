"""From a loader's pixels to the model's input, on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class Normalize(nn.Module):
    """`(N, 3, H, W)`, 0 to 255 -> float `(x / 255 - mean) / std`, channels_last.

    One multiply-add over rows of pixels: on a CPU, broadcasting over a dimension of three channels
    is several times slower. The model gets `dtype`: what autocast would turn its input into anyway,
    in its own time; None: the type of the buffers, in which it is computed.
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self._dtype = dtype
        mean_, std_ = torch.tensor(mean), torch.tensor(std)
        self.register_buffer("scale", 1 / (255 * std_))
        self.register_buffer("shift", -mean_ / std_)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.to(self.scale.dtype).permute(0, 2, 3, 1)
        width = pixels.shape[2]
        rows = torch.addcmul(self.shift.repeat(width), pixels.flatten(2), self.scale.repeat(width))
        return rows.view(pixels.shape).permute(0, 3, 1, 2).to(self._dtype or rows.dtype)
