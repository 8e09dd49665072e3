"""Models that predict each pixel: torchvision's segmentation models, and timm's encoders."""

from __future__ import annotations

from typing import Any

import torchvision
from torch import Tensor, nn
from torch.nn import functional

_WIDTH, _LEAST_REDUCTION = 128, 4


def segmentation_models() -> list[str]:
    """Returns the names of torchvision's segmentation models."""
    return torchvision.models.list_models(module=torchvision.models.segmentation)


class PyramidHead(nn.Module):
    """An encoder of timm with a light head: `(N, 3, H, W)` -> logits `(N, classes, H, W)`.

    Each feature map of the encoder is projected to _WIDTH channels and, from the smallest on, added
    to the next larger one, as in Lin et al., "Feature Pyramid Networks for Object Detection"
    (CVPR 2017). The logits are computed from the largest map and resized to the input (bilinear).
    Maps larger than a quarter of the input's side are not used: they would cost most of the time.
    """

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        """`encoder` is a timm model, created with `features_only=True`."""
        super().__init__()
        info: Any = encoder.feature_info
        self.encoder = encoder
        self._first = sum(reduction < _LEAST_REDUCTION for reduction in info.reduction())
        channels = info.channels()[self._first :]
        self.lateral = nn.ModuleList(nn.Conv2d(count, _WIDTH, 1) for count in channels)
        self.smooth = nn.Sequential(
            nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1, bias=False),
            nn.BatchNorm2d(_WIDTH),
            nn.ReLU(inplace=True),
        )
        self.classify = nn.Conv2d(_WIDTH, classes, 1)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Turn on the encoder's checkpointing; see `model.gradient_checkpointing`."""
        model: Any = self.encoder.model
        model.set_grad_checkpointing(enable)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.encoder(images)[self._first :]
        merged, *larger = [
            layer(each) for layer, each in zip(reversed(self.lateral), reversed(maps), strict=True)
        ]
        for each in larger:
            merged = each + functional.interpolate(merged, each.shape[-2:])
        logits = self.classify(self.smooth(merged))
        return functional.interpolate(logits, images.shape[-2:], mode="bilinear")
