"""The interface of a task: what a model learns, how it is judged, and what it answers.

To write your own, subclass the nearest one in this folder, override what differs, and name it
by its dotted path: `task.name=project.tasks.OrderedClasses`. It is created once per process, with
the keyword arguments `train` (the train split, a `Source`), `config` (the `TrainConfig`), `device`
(where `loss` and `scores` get their tensors), and those in `task.kwargs`. The exported model has it
too: `predict` and `serve` create it with one sample of zeros, and ask it for the answers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from entry_point.job.known_tasks import Metric

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Metric", "Share", "Size", "Table", "Task", "best_by_name"]

Size = tuple[int, int]
"""Height and width in pixels."""
ALL_UP_TO, TOP = 100, 10
"""A model with more names than the first answers its best `TOP`."""


class Share(float):
    """A share from 0 to 1 in a table, which shows it in percent; NaN as `-`: nothing to share."""

    def __str__(self) -> str:
        return f"{100 * self:.2f} %" if self == self else "-"


@dataclass(frozen=True)
class Table:
    """A table in the report and in evaluation.json. Its first column has the names of the rows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]
    note: str = ""
    shaded: bool = False
    """Color each count by its share of its row."""
    shown: int | None = None
    """How many rows the report has, the first; None: all. evaluation.json has all."""


class Task(Protocol):
    """What a model learns.

    In all methods, `outputs` are the model's, float32 `(N, self.outputs)`, and `targets` the labels
    of the source: int64 `(N,)` if it takes `class`, what the source makes if it takes `targets`,
    else float32 `(N, len(self.names))`. `answers` are what `head` makes of the outputs, on the CPU.

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
    head: nn.Module
    """float32 outputs -> float32 answers: probabilities `(N, len(self.names))`, numbers, or what
    your own task answers. What state it has goes into the model folder."""
    metrics: Sequence[Metric]
    """What `measure` computes. Checkpoints track the first, or the one that `task.best` names."""
    blends: Sequence[str]
    """Which of `mixup` and `cutmix` fit. `loss` then gets blended targets: float32
    `(N, len(self.names))`, also for classes."""
    answers_png: bool = False
    """Whether `describe` has a PNG, which is then the answer to `Accept: image/png`."""
    colors: Sequence[str] = ()
    """The color of each of the `names` in what `draw` draws, as `#rrggbb`, for a legend."""

    # -- learning

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the training loss: the mean over the samples, a scalar. Must not wait for the
        device."""
        ...

    # -- evaluation and report

    @abstractmethod
    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns what evaluation keeps of each sample: float64 `(N, columns)`, on the device.

        The first column is the sample's loss; its mean is logged as `val_loss`.
        """
        ...

    @abstractmethod
    def measure(self, scores: Tensor) -> dict[str, float]:
        """Returns the metrics by name, of all samples' `scores`, on the CPU.

        The rows are sorted by sample, so the metrics are the same on any number of ranks. What is
        not finite is not logged. A `loss` of all samples together replaces the mean of `scores`.
        """
        ...

    @abstractmethod
    def tables(self, scores: Tensor) -> list[Table]:
        """Returns the tables of the report; may be none."""
        ...

    def outcomes(self, scores: Tensor) -> dict[str, list[Any]]:  # noqa: ARG002
        """Returns what `make evaluate` writes to predictions.csv between the path and the loss of
        each sample: values by column, in the order of `scores`."""
        return {}

    @abstractmethod
    def mistakes(self, scores: Tensor, most: int) -> list[tuple[int, str]]:
        """Returns the worst mistakes first, at most `most`: row in `scores`, and the caption."""
        ...

    def draw(self, image: Image.Image, target: Tensor, side: int) -> Image.Image:  # noqa: ARG002
        """Returns an RGB image with its target drawn, if the task takes `targets`.

        The report shows training samples and mistakes so. `side` is the height and width of the
        sample that the target is of, in pixels; the image may have another size.
        """
        return image

    def answered(self, output: Tensor, target: Tensor) -> Tensor:  # noqa: ARG002
        """Returns what `draw` draws of one sample's output, in the form of its target."""
        return target

    # -- answers of an exported model

    def rows(self, answers: Tensor, sizes: Sequence[Size]) -> pl.DataFrame:  # noqa: ARG002
        """Returns what `predict` writes: a row for each image, of the same columns also for none.

        `sizes` are those of the images. A column of bytes has a PNG for each image, which becomes a
        file; the column `mask` then has its path, below the folder `masks`.
        """
        import polars as pl  # training can do without it

        column = pl.Array(pl.Float32, answers.shape[1])
        return pl.DataFrame({"scores": answers.numpy()}, schema={"scores": column})

    def describe(self, answer: Tensor, size: Size, top: int | None) -> dict[str, Any]:  # noqa: ARG002
        """Returns what a server answers for one image, as values of JSON; bytes are a PNG.

        `top` is None; in 1.x it was how many names the client wanted.
        """
        named = zip(self.names, answer.tolist(), strict=True)
        return {"values": {name: float(f"{value:.7g}") for name, value in named}}


def best_by_name(
    values: NDArray[np.float32], names: Sequence[str], top: int | None
) -> dict[str, float]:
    """Returns rounded values by name: the largest `top`, or all in the names' order.

    None: all, of more than `ALL_UP_TO` the largest `TOP`.
    """
    count = min(len(names), top or (len(names) if len(names) <= ALL_UP_TO else TOP))
    if count == len(names):
        # What Python's round() makes of a float32, in a fraction of the time.
        rounded = (values.astype(np.float64) * 1e6).round() / 1e6
        return dict(zip(names, rounded.tolist(), strict=True))
    places = np.argpartition(values, -count)[-count:]
    places = places[np.argsort(-values[places], kind="stable")]
    return {names[place]: round(float(values[place]), 6) for place in places.tolist()}
