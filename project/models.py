"""Your own models: `model.name=project.models.small_net model.kwargs.width=64`."""

from __future__ import annotations

from torch import nn


def small_net(num_classes: int, width: int = 32) -> nn.Module:
    """Images `(N, 3, H, W) float32` -> logits `(N, num_classes)`: three strided convolutions."""
    layers: list[nn.Module] = []
    channels = 3
    for out in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(channels, out, 3, 2, 1), nn.BatchNorm2d(out), nn.ReLU()]
        channels = out
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    return nn.Sequential(*layers, *head)
