"""The interface of a task: what a model learns, how it is judged, and what it answers.

To write your own, subclass the nearest one in this folder, override what differs, and name it
by its dotted path: `task.name=project.tasks.OrderedClasses`. It is created once per process, with
the keyword arguments `train` (the train split, a `Source`), `config` (the `TrainConfig`), `device`
(where `loss` and `scores` get their tensors), and those in `task.kwargs`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from entry_point.job.metrics_line import Metric


@dataclass(frozen=True)
class Export:
    """How the model's outputs become answers, in evaluation, `make predict` and serving."""

    kind: str
    """The form of an answer: `classification` (the likeliest class), `multilabel` (the labels that
    reach the threshold), `regression` (numbers) or `segmentation` (a class per pixel)."""
    head: nn.Module
    """float32 outputs `(N, Task.outputs)` -> float32 answers `(N, len(Task.names))`: probabilities,
    or numbers; of segmentation `(N, len(Task.names), height, width)`. What state it has goes into
    the model folder."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What `kind` needs beside the names: `threshold` for `multilabel`."""


@dataclass(frozen=True)
class Table:
    """A table in the report. Its first column has the names of the rows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]
    note: str = ""
    shaded: bool = False
    """Color each count by its share of its row."""


class Task(Protocol):
    """What a model learns.

    In all methods, `outputs` are the model's, float32 `(N, self.outputs)`, and `targets` the labels
    of the source: int64 `(N,)` if it takes `class`, what the source makes if it takes `targets`,
    else float32 `(N, len(self.names))`.

    With `data.views=V`, `loss` gets V samples of each image, which follow each other.
    """

    takes: str
    """The labels that it learns from: `class` (one class per image), `labels` (0 or 1 for each
    label), `numbers`, or `targets` (what lies in the image, as masks and boxes do: see
    `TargetSource`). A source with others is refused."""
    names: list[str]
    """Names of the classes, labels or numbers that it answers."""
    outputs: int
    """Size of the model's output: its `num_classes`."""
    export: Export
    metrics: Sequence[Metric]
    """What `measure` computes. Checkpoints track the first, or the one that `task.best` names."""
    blends: Sequence[str]
    """Which of `mixup` and `cutmix` fit. `loss` then gets blended targets: float32
    `(N, len(self.names))`, also for classes."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The training loss: the mean over the samples, a scalar. Must not wait for the device."""
        ...

    @abstractmethod
    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What evaluation keeps of each sample: float64 `(N, columns)`, on the device.

        The first column is the sample's loss; its mean is logged as `val_loss`.
        """
        ...

    @abstractmethod
    def measure(self, scores: Tensor) -> dict[str, float]:
        """The metrics by name, of all samples' `scores`, on the CPU.

        The rows are sorted by sample, so the metrics are the same on any number of ranks. What is
        not finite is not logged. A `loss` of all samples together replaces the mean of `scores`.
        """
        ...

    @abstractmethod
    def tables(self, scores: Tensor) -> list[Table]:
        """The tables of the report; may be none."""
        ...

    @abstractmethod
    def mistakes(self, scores: Tensor, most: int) -> list[tuple[int, str]]:
        """The worst mistakes first, at most `most`: row in `scores`, and the caption."""
        ...
