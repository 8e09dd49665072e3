"""Several views of each image, through a model of single images."""

from __future__ import annotations

import torch
from torch import nn


class EachView(nn.Module):
    """Lets a model take the views of a batch in one pass: BatchNorm measures them together."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """`(N, V, 3, S, S)` -> `(N, V, outputs)`."""
        outputs: torch.Tensor = self.model(images.flatten(0, 1))
        return outputs.unflatten(0, images.shape[:2])
