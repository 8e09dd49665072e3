"""Small custom models for the tests; most of them misbehave in one way."""

import logging
import os
import signal
import warnings

import torch
from torch import nn

from entry_point.job.run_folder import RunFolder
from entry_point.training import checkpoints


def tiny_net(num_classes: int) -> nn.Module:
    """Two strided convolutions and a classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, num_classes),
    )


def grid_net(num_classes: int) -> nn.Module:
    """Keeps the coordinates of its pixels, whose rows share their memory."""
    net = tiny_net(num_classes)
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(5.0), indexing="ij")
    net.register_buffer("rows", rows)
    net.register_buffer("columns", columns)
    return net


def hurried_net(num_classes: int) -> nn.Module:
    """Has a checkpoint by time after each step, and keeps all of them."""
    checkpoints.SECONDS, checkpoints.KEPT = 0.0, 100
    return tiny_net(num_classes)


def tiny_net_with_state(num_classes: int) -> nn.Module:
    """With what makes resuming hard: batch statistics and dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(32, num_classes),
    )


class _Poisoned(nn.Module):
    """A classifier that returns NaN in its third training step."""

    calls: torch.Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.net = tiny_net(num_classes)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(images)
        if self.training:
            self.calls += 1
            logits = logits * torch.where(self.calls == 3, float("nan"), 1.0)
        return logits


def poisoned_net(num_classes: int) -> nn.Module:
    """Returns NaN in the third training step."""
    return _Poisoned(num_classes)


class infinite_net(nn.Module):
    """A classifier with infinite constants: a mask, a minimum of what it has seen, and a weight
    that is never trained."""

    mask: torch.Tensor
    least: torch.Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.net = tiny_net(num_classes)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
        self.register_buffer("least", torch.full((2,), float("inf")))
        self.floor = nn.Parameter(torch.full((2,), float("-inf")), requires_grad=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.least[0] = torch.minimum(self.least[0], images.amin())
        logits: torch.Tensor = self.net(images)
        attention = (logits.mean(1)[:, None, None] + self.mask).softmax(-1).mean((1, 2))
        return (logits * attention[:, None]).maximum(self.floor.max())


class _Exploding(torch.autograd.Function):
    """The identity, with infinite gradients."""

    @staticmethod
    def forward(_context: object, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(_context: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("inf")


class _Hooked(nn.Module):
    """A classifier with a hook in its third training step, and one in evaluation."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.net, self.calls = tiny_net(num_classes), 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(images)
        if not self.training:
            return self.evaluating(logits)
        self.calls += 1
        return self.third_step(logits) if self.calls == 3 else logits

    def third_step(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def evaluating(self, logits: torch.Tensor) -> torch.Tensor:
        return logits


class exploding_net(_Hooked):
    """Infinite gradients of a finite loss in the third training step."""

    def third_step(self, logits: torch.Tensor) -> torch.Tensor:
        exploded: torch.Tensor = _Exploding.apply(logits)
        return exploded


class failing_net(_Hooked):
    """Raises on the second rank in the third training step."""

    def third_step(self, logits: torch.Tensor) -> torch.Tensor:
        if os.environ.get("RANK") == "1":
            raise ArithmeticError("the second rank cannot go on")
        return logits


class stopping_net(_Hooked):
    """Stops a job of several ranks in its third training step."""

    def third_step(self, logits: torch.Tensor) -> torch.Tensor:
        if torch.distributed.is_initialized():
            os.kill(os.getpid(), signal.SIGTERM)
        return logits


class useless_net(_Hooked):
    """Raises in the first training step."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise ArithmeticError("cannot take a step")
        return super().forward(images)


class blind_net(_Hooked):
    """Returns NaN in evaluation only."""

    def evaluating(self, logits: torch.Tensor) -> torch.Tensor:
        return logits * float("nan")


class stopping_in_evaluation_net(_Hooked):
    """Stops the job in its run's first evaluation."""

    def evaluating(self, logits: torch.Tensor) -> torch.Tensor:
        asked = RunFolder.from_environment().root / "asked"
        if not asked.exists():
            asked.touch()
            os.kill(os.getpid(), signal.SIGTERM)
        return logits


class noting_net(_Hooked):
    """Appends the sum of each training image to the file `seen` in its run folder."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            sums = images.double().sum(dim=(1, 2, 3)).tolist()
            with (RunFolder.from_environment().root / "seen").open("a") as seen:
                seen.write("".join(f"{value:.3f}\n" for value in sums))
        logits: torch.Tensor = super().forward(images)
        return logits


def pixel_net(num_classes: int) -> nn.Module:
    """A class for each pixel, by its color alone."""
    return nn.Conv2d(3, num_classes, 1)


class asserting_net(_Hooked):
    """Takes images of 24 pixels only."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.shape[-1] == 24
        return super().forward(images)


def warning_net(num_classes: int) -> nn.Module:
    """Ends in a softmax, and warns in two ways while it is built."""
    warnings.warn("an own model warns", stacklevel=1)
    logging.getLogger(__name__).warning("an own model logs")
    return nn.Sequential(tiny_net(num_classes), nn.Softmax(1))


def silent_net(num_classes: int) -> nn.Module:
    """Ends the second rank, as a library may that calls exit."""
    if os.environ["RANK"] == "1":
        os._exit(3)
    return tiny_net(num_classes)
