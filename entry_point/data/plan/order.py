"""Plans which samples each step of each rank takes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entry_point.config.config_errors import ConfigError
from entry_point.data.plan.philox import permutation, stream_words, unit
from entry_point.data.plan.samples import Ints, with_repeats

Weights = NDArray[np.float64]
"""Relative frequency of drawing each sample."""
_ORDER_STREAM, _DRAW_STREAM = 0, 2


class Plan(Protocol):
    """Decides the samples of each step of one rank. An epoch can start at any step."""

    @property
    def samples_per_epoch(self) -> int:
        """Number of samples of this rank in an epoch."""
        ...

    @property
    def steps_per_epoch(self) -> int: ...

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[Ints]:
        """Yields the sample indices, int64 (batch,), of every step from `start_step` on.

        See `with_repeats` for samples that are drawn more than once.
        """
        ...

    def read_ahead(self, reader: ThreadPoolExecutor) -> None:  # noqa: ARG002
        """Use `reader` to read the bytes of coming steps before `batches` yields them.

        Called in the process that decodes. Does nothing by default, for sources whose files or
        memory maps are read when they are used.
        """
        return

    def release(self) -> None:
        """Drop the bytes that were read ahead. Does nothing by default."""
        return


def steps_of(samples: int, batch_size: int, train: bool) -> int:
    """Returns the number of steps in an epoch: training drops a last partial batch."""
    whole, rest = divmod(samples, batch_size)
    return whole if train else whole + bool(rest)


@dataclass(frozen=True)
class EpochPlan(Plan):
    """Orders the samples of an epoch, as a function of (seed, epoch).

    Training shuffles, or with `weights` draws the same number with replacement. It drops the
    samples that do not fill a step of all ranks. A step takes the next batch_size * world_size
    samples of the order and deals them to the ranks in turn, so the steps depend only on the
    global batch size, not on the number of ranks. Validation deals all samples to the ranks
    in turn, each exactly once; ranks may differ by one step.
    """

    count: int
    batch_size: int
    seed: int
    train: bool
    rank: int = 0
    world_size: int = 1
    weights: Weights | None = field(default=None, compare=False)
    """Relative frequency of drawing each sample; None to draw each once."""
    repeats: int = 1
    """Samples that training makes of each image it draws, see `_training_order`."""

    def __post_init__(self) -> None:
        step = self.batch_size * self.world_size
        if self.train and self.count < step:
            most = self.count // self.world_size * self.world_size
            images = "1 image" if self.count == 1 else f"{self.count} images"
            message = f"must be at most {most}, as the train split has {images}"
            raise ConfigError("trainer.batch_size", step, message)

    @property
    def samples_per_epoch(self) -> int:
        if self.train:
            return self.count // (self.batch_size * self.world_size) * self.batch_size
        return len(range(self.rank, self.count, self.world_size))

    @property
    def steps_per_epoch(self) -> int:
        return steps_of(self.samples_per_epoch, self.batch_size, self.train)

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[Ints]:
        order = self._training_order(epoch) if self.train else np.arange(self.count)
        own = order[self.rank :: self.world_size]
        for step in range(start_step, self.steps_per_epoch):
            batch = own[step * self.batch_size : (step + 1) * self.batch_size]
            if self.train:  # move repeats of an image apart: MixUp and CutMix blend neighbors
                parts = [batch[first :: self.repeats] for first in range(self.repeats)]
                batch = np.concatenate(parts)
            yield batch

    def _training_order(self, epoch: int) -> Ints:
        """Returns the images of an epoch's samples, with their repeats.

        Repeats of an image are adjacent, so dealing samples in turn gives them to different ranks.
        The epoch keeps its length and draws fewer images, as RASampler of facebookresearch/deit
        (samplers.py) does, after Hoffer et al., "Augment your batch" (CVPR 2020).
        """
        if self.weights is None:
            order = permutation((self.seed, _ORDER_STREAM), self.count, epoch)
        else:
            order = draw(self.weights, self.seed, epoch)
        if self.weights is None and self.repeats == 1:
            return order
        return with_repeats(np.repeat(order, self.repeats)[: self.count])


@dataclass(frozen=True)
class RangePlan(Plan):
    """Takes the samples of a range, each once and in order."""

    samples: range
    batch_size: int

    @property
    def samples_per_epoch(self) -> int:
        return len(self.samples)

    @property
    def steps_per_epoch(self) -> int:
        return steps_of(len(self.samples), self.batch_size, train=False)

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[Ints]:  # noqa: ARG002
        """Yields the same samples in every epoch."""
        for start in range(start_step * self.batch_size, len(self.samples), self.batch_size):
            batch = self.samples[start : start + self.batch_size]
            yield np.arange(batch.start, batch.stop)


# data.balance: a training epoch that draws all classes equally often


def draw_weights(kind: str, labels: Tensor, classes: int) -> Weights:
    """Returns the relative frequency of drawing each image, float64 (N,).

    `kind` and `labels` come from a source. An image's weight is 1 / the number of images of its
    class, or with its rarest label. Having no label counts as a label.
    Raises ConfigError for other kinds.
    """
    if kind not in ("class", "labels"):
        message = f"needs classes or labels, but the dataset has {kind}; remove it"
        raise ConfigError("data.balance", "classes", message)
    if kind == "class":
        numbers = labels.numpy()
        shares: Weights = 1 / np.maximum(np.bincount(numbers, minlength=classes), 1)
        return shares[numbers]
    unlabeled = 1 - labels.amax(1, keepdim=True)
    held = torch.cat([labels, unlabeled], 1)
    rarest = held / held.sum(0, dtype=torch.float64).clamp(min=1)
    return rarest.amax(1).numpy()


def draw(weights: Weights, seed: int, epoch: int) -> Ints:
    """Returns an epoch's images, int64 (N,), drawn with replacement.

    The image at each position is a function of (seed, epoch, position).
    """
    ends = np.cumsum(weights)
    chances = unit(stream_words((seed, _DRAW_STREAM), epoch, 0, len(weights)))
    return np.minimum(np.searchsorted(ends, chances * ends[-1], side="right"), len(weights) - 1)
