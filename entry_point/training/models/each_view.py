"""Several views of each image, through a model of single images."""

from __future__ import annotations

import torch
from torch import nn


class EachView(nn.Module):
    """Lets a model take the views of a batch, one pass for each size.

    As `MultiCropWrapper` of facebookresearch/dino (utils.py) does: BatchNorm measures all views of
    one size together.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *sizes: torch.Tensor) -> torch.Tensor:
        """`(N, V, 3, S, S)` for each size -> `(N, all views, outputs)`, in the same order."""
        outputs = [self.model(views.flatten(0, 1)).unflatten(0, views.shape[:2]) for views in sizes]
        return torch.cat(outputs, 1)
