"""Image preprocessing on the device, between the loader and the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from entry_point.config.data_config import DataConfig
from entry_point.data.decode.stall import mask_ycbcr, rgb_to_ycbcr


class Normalize(nn.Module):
    """`(N, 3, H, W)`, 0 to 255 -> float `(x / 255 - mean) / std`, channels_last.

    One multiply-add over rows of pixels: on a CPU, broadcasting over a dimension of three channels
    is several times slower.
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        mean_, std_ = torch.tensor(mean), torch.tensor(std)
        self.register_buffer("scale", 1 / (255 * std_))
        self.register_buffer("shift", -mean_ / std_)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.to(self.scale.dtype).permute(0, 2, 3, 1)
        width = pixels.shape[2]
        rows = torch.addcmul(self.shift.repeat(width), pixels.flatten(2), self.scale.repeat(width))
        return rows.view(pixels.shape).permute(0, 3, 1, 2)


class DeviceTransform(nn.Module):
    """A loader's images -> the model's input: the part of `data.transform` done on the device.

    It computes in fp32. The model gets `dtype`: what autocast would turn its input into anyway, in
    its own time.
    """

    def __init__(self, data: DataConfig, seed: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self._dtype = dtype
        self.normalize = Normalize(data.mean, data.std)
        self._masks, self._seed = data.transform == "stall", seed

    def forward(
        self, images: torch.Tensor, indices: torch.Tensor, epoch: int | None = None
    ) -> torch.Tensor:
        """`indices` are the samples' numbers. In validation `epoch` is None: nothing is random.

        The loader has already transformed float images.
        """
        if images.is_floating_point():
            return images.to(self._dtype)
        if self._masks and epoch is not None:
            images = mask_ycbcr(images, self._seed, epoch, indices)
        normalized: torch.Tensor = self.normalize(images)
        return normalized.to(self._dtype)


class FromRgb(nn.Module):
    """uint8 RGB `(N, 3, H, W)` -> the model's input, for deployment."""

    def __init__(self, data: DataConfig) -> None:
        super().__init__()
        self.normalize = Normalize(data.mean, data.std)
        self._converts = data.transform == "stall"

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = rgb_to_ycbcr(images.to(self.normalize.scale.dtype)) if self._converts else images
        normalized: torch.Tensor = self.normalize(pixels)
        return normalized
