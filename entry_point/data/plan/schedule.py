"""In which order a job reads its splits, so that batches are made ahead from one to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """The batches of one epoch of one split, from `step` on."""

    split: str
    epoch: int
    step: int = 0


After = Callable[[Part], Part | None]
"""The part whose batches are made while the last ones of a part are still used; None: no part."""


def nothing_after(_part: Part) -> None:
    """Each part is read on its own."""


@dataclass(frozen=True)
class Schedule:
    """Epochs of training, with evaluations in between."""

    epochs: int
    evaluate_every_epochs: int

    def evaluates_after(self, epoch: int) -> bool:
        return (epoch + 1) % self.evaluate_every_epochs == 0 or epoch + 1 == self.epochs

    def after(self, part: Part) -> Part | None:
        """See After. An evaluation has the number of the epoch before it."""
        if part.split == "train" and self.evaluates_after(part.epoch):
            return Part("val", part.epoch)
        following = part.epoch + 1
        return Part("train", following) if following < self.epochs else None
