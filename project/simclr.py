"""Self-supervised training: `task.name=project.simclr.SimClr model.name=project.simclr.encoder`.

Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations" (ICML 2020).
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torchvision
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.nn import functional

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import TrainConfig
from entry_point.data.sources.source import Source
from entry_point.training.checkpoints import DamagedFileError, load_safetensors
from entry_point.training.tasks.task import Metric, Table, Task

_VOTE_TEMPERATURE = 0.07
_ROWS = 1024


def encoder(num_classes: int, backbone: str = "resnet18") -> nn.Module:
    """Returns a ResNet of torchvision: float images `(N, 3, S, S)` -> projections `(N,
    num_classes)` while it trains, and the features before the projection, `(N, 512)` or `(N,
    2048)`, afterwards."""
    model: nn.Module = torchvision.models.get_model(backbone, weights=None)
    last = model.get_submodule("fc")
    assert isinstance(last, nn.Linear)
    model.fc = _Projection(last.in_features, num_classes)
    if dist.is_initialized() and dist.get_backend() == "nccl":
        # Batch statistics of all ranks, as published; on CPUs torch has none.
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model


def classifier(num_classes: int, weights: str | None, backbone: str = "resnet18") -> nn.Module:
    """To finetune: the same ResNet with a new last layer.

    `weights`: the model.safetensors of a SimClr run; None where the finetuned model is loaded.
    """
    model: nn.Module = torchvision.models.get_model(backbone, num_classes=num_classes)
    if weights is None:
        return model
    try:
        state = load_safetensors(Path(weights))
    except DamagedFileError as error:
        raise ConfigError("model.kwargs.weights", weights, str(error)) from error
    encoded = {name: value for name, value in state.items() if not name.startswith("fc.")}
    own = {name: value for name, value in model.state_dict().items() if name.split(".")[0] != "fc"}
    shapes = [{name: value.shape for name, value in each.items()} for each in (own, encoded)]
    if shapes[0] != shapes[1]:
        raise ConfigError("model.kwargs.weights", weights, f"holds no SimClr run of {backbone}")
    model.load_state_dict(encoded, strict=False)
    return model


class _Projection(nn.Sequential):
    def __init__(self, features: int, outputs: int) -> None:
        hidden = nn.Linear(features, features)
        super().__init__(hidden, nn.ReLU(), nn.Linear(features, outputs))

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features) if self.training else features


class SimClr(Task):
    """Learns to give the views of an image more similar features than other images of the step.

    The loss compares all images of all ranks. Labels serve only the metric: the share of validation
    images that their nearest neighbors in the validation split classify rightly. The answers of the
    exported model are its features.
    """

    takes = "class"
    blends = ()
    metrics = (Metric("knn_accuracy", "k-NN accuracy", percent=True),)

    def __init__(
        self,
        train: Source,  # noqa: ARG002 - as every task
        config: TrainConfig,
        device: torch.device,  # noqa: ARG002
        features: int = 512,
        projection: int = 128,
        temperature: float = 0.1,
        neighbors: int = 20,
    ) -> None:
        if config.data.views < 2:
            raise ConfigError("data.views", config.data.views, "must be at least 2 for SimClr")
        if config.optim.accumulate > 1:
            message = "must be 1: SimClr compares the images of a step with each other"
            raise ConfigError("optim.accumulate", config.optim.accumulate, message)
        self.names = [f"feature_{number}" for number in range(features)]
        self.outputs, self._views = projection, config.data.views
        self.head = nn.Identity()
        self._temperature, self._neighbors = temperature, neighbors

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        """NT-Xent, also for more than two views: the mean over all pairs of an image's views.

        Ranks share their projections, and the backward pass of `all_gather` sums the gradients of
        all ranks' losses. DDP then takes the mean over the ranks: the gradient of the mean loss.
        """
        own, each = functional.normalize(outputs), self._views
        together = dist.is_initialized() and dist.get_world_size() > 1
        everyone = torch.cat(all_gather(own)) if together else own
        rows = torch.arange(len(own), device=own.device)
        rows += len(rows) * dist.get_rank() if together else 0
        others = torch.arange(len(everyone), device=own.device)
        itself = rows[:, None] == others
        positive = (rows[:, None] // each == others // each) & ~itself
        similar = (own @ everyone.T / self._temperature).masked_fill(itself, -torch.inf)
        losses = -similar.log_softmax(1).masked_fill(~positive, 0).sum(1) / (each - 1)
        return losses.mean()

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """`(0, class, features)`: the loss is one of all samples together, see `measure`."""
        if outputs.shape[1] != len(self.names):
            message = f"must be {outputs.shape[1]}, the features of the model"
            raise ConfigError("task.kwargs.features", len(self.names), message)
        numbers = torch.stack([torch.zeros_like(targets), targets], 1)
        return torch.cat([numbers.double(), functional.normalize(outputs).double()], 1)

    def measure(self, scores: Tensor) -> dict[str, float]:
        """Returns the weighted vote of the other samples that are nearest, as in Wu et al.,
        "Unsupervised Feature Learning via Non-Parametric Instance Discrimination" (CVPR 2018).

        The loss is the cross-entropy of the votes, to which each class adds one.
        """
        classes, features = scores[:, 1].long(), scores[:, 2:].float()
        count, most = int(classes.max()) + 1, min(self._neighbors, len(scores) - 1)
        hits, losses = [], []
        for rows in torch.arange(len(scores)).split(_ROWS):
            similar = features[rows] @ features.T
            similar[torch.arange(len(rows)), rows] = -torch.inf
            near = similar.topk(most)
            weights = most * (near.values / _VOTE_TEMPERATURE).softmax(1)
            votes = torch.zeros(len(rows), count).scatter_add(1, classes[near.indices], weights)
            right = votes.gather(1, classes[rows, None])[:, 0]
            hits.append(votes.argmax(1) == classes[rows])
            losses.append(-((right + 1) / (most + count)).log())
        accuracy, loss = (float(torch.cat(values).double().mean()) for values in (hits, losses))
        return {"knn_accuracy": accuracy, "loss": loss}

    def tables(self, scores: Tensor) -> list[Table]:  # noqa: ARG002
        return []

    def mistakes(self, scores: Tensor, most: int) -> list[tuple[int, str]]:  # noqa: ARG002
        return []
