"""Your own tasks: `task.name=project.tasks.OrderedClasses`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from entry_point.config.train_config import TrainConfig
from entry_point.data.sources.source import Source
from entry_point.training.tasks.classification import Classification
from entry_point.training.tasks.task import Metric


class OrderedClasses(Classification):
    """Classes with an order, such as grades or sizes: the order of their names.

    Output k says how likely the class is above class k, so there is one output less than classes.
    A class that is far off costs more than its neighbor. Add `task.metrics=[distance]` to see how
    far off on SageMaker too.
    """

    blends = ()

    def __init__(self, train: Source, config: TrainConfig, device: torch.device) -> None:
        super().__init__(train, config, device)
        self.outputs = len(self.names) - 1
        self.head = _ClassProbabilities()
        distance = Metric("distance", "distance in classes", higher_is_better=False)
        self.metrics = [distance, *self.metrics]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.losses(outputs, targets).mean()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        thresholds = torch.arange(self.outputs, device=outputs.device)
        above = (targets[:, None] > thresholds).to(outputs.dtype)
        losses = functional.binary_cross_entropy_with_logits(outputs, above, reduction="none")
        return losses.mean(1)

    def measure(self, scores: Tensor) -> dict[str, float]:
        distance = float((scores[:, 1] - scores[:, 2]).abs().mean())
        return {**super().measure(scores), "distance": distance}


class _ClassProbabilities(nn.Module):
    """P(class k) = P(above k - 1) - P(above k), as far as the outputs agree."""

    def forward(self, outputs: Tensor) -> Tensor:
        above = functional.pad(outputs.sigmoid(), (1, 0), value=1.0)
        shares = (above - functional.pad(above[:, 1:], (0, 1))).clamp(min=0)
        return shares / shares.sum(1, keepdim=True)
