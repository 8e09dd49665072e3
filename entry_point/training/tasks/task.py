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
"""A model with more than `ALL_UP_TO` names answers with its best `TOP`."""


class Share(float):
    """A share from 0 to 1, shown in percent in tables; NaN, for undefined, is shown as `-`."""

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
    """Whether each count is colored by its share of its row."""
    shown: int | None = None
    """The report shows the first `shown` rows, or all if it is None. evaluation.json has all."""


class Task(Protocol):
    """Defines the loss, the metrics and the answers of a model.
    In all methods, `outputs` are the model's, float32 `(N, self.outputs)`, and `targets` are the
    labels of the source: int64 `(N,)` if the task takes `class`, the source's own if it takes
    `targets`, else float32 `(N, len(self.names))`. `answers` are `head(outputs)`, on the CPU.

    With `data.views=V`, `loss` gets V consecutive samples of each image.
    """

    takes: str
    """The labels that the task learns from: `class` (one class per image), `labels` (0 or 1 for
    each label), `numbers`, or `targets` (located in the image, such as masks and boxes: see
    `TargetSource`). A source with other labels is refused."""
    names: list[str]
    """Names of the classes, labels or numbers in the answers."""
    outputs: int
    """Size of the model's output: its `num_classes`."""
    head: nn.Module
    """float32 outputs -> float32 answers: probabilities `(N, len(self.names))`, numbers, or the
    answers of your own task. Its state is saved in the model folder."""
    metrics: Sequence[Metric]
    """The metrics that `measure` returns. Checkpoints track the first, or the one that `task.best`
    names."""
    blends: Sequence[str]
    """Those of `mixup` and `cutmix` that suit the task. `loss` then gets blended targets: float32
    `(N, len(self.names))`, also for classes."""
    answers_png: bool = False
    """Whether `describe` returns a PNG, which then answers `Accept: image/png`."""
    colors: Sequence[str] = ()
    """The color of each of the `names` in `draw`'s pictures, as `#rrggbb`, for a legend."""

    # -- learning

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the training loss: the mean over the samples, a scalar. Must not wait for the
        device."""
        ...

    # -- evaluation and report

    @abstractmethod
    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns what `measure` needs of each sample: float64 `(N, columns)`, on the device.

        The first column is the sample's loss; its mean is logged as `val_loss`.
        """
        ...

    @abstractmethod
    def measure(self, scores: Tensor) -> dict[str, float]:
        """Returns the metrics by name, from the `scores` of all samples, on the CPU.

        The rows are sorted by sample, so the metrics are the same on any number of ranks. Values
        that are not finite are not logged. A metric `loss` replaces the mean loss of the samples.
        """
        ...

    @abstractmethod
    def tables(self, scores: Tensor) -> list[Table]:
        """Returns the tables of the report, or an empty list."""
        ...

    def outcomes(self, scores: Tensor) -> dict[str, list[Any]]:  # noqa: ARG002
        """Returns the columns between path and loss of predictions.csv, which `make evaluate`
        writes: the values of each column, in the order of `scores`."""
        return {}

    @abstractmethod
    def mistakes(self, scores: Tensor, most: int) -> list[tuple[int, str]]:
        """Returns at most `most` mistakes, the worst first: the row in `scores`, and a caption."""
        ...

    def draw(self, image: Image.Image, target: Tensor, side: int) -> Image.Image:  # noqa: ARG002
        """Returns an RGB image with its target drawn, if the task takes `targets`.

        The report uses it for training samples and mistakes. `side` is the height and width in
        pixels of the sample to which the target belongs; the image may have another size.
        """
        return image

    def answered(self, output: Tensor, target: Tensor) -> Tensor:  # noqa: ARG002
        """Returns one sample's output in the form of a target, for `draw`."""
        return target

    # -- answers of an exported model

    def rows(self, answers: Tensor, sizes: Sequence[Size]) -> pl.DataFrame:  # noqa: ARG002
        """Returns the table that `predict` writes: a row for each image, and the same columns if
        there are no images.

        `sizes` are the sizes of the images. A column of bytes holds a PNG for each image, which is
        written to a file below the folder `masks`; the column `mask` then holds its path.
        """
        import polars as pl  # training does not need it

        column = pl.Array(pl.Float32, answers.shape[1])
        return pl.DataFrame({"scores": answers.numpy()}, schema={"scores": column})

    def describe(self, answer: Tensor, size: Size, top: int | None) -> dict[str, Any]:  # noqa: ARG002
        """Returns the server's answer for one image, as values of JSON; bytes are a PNG.

        `top` is always None; in 1.x it was the number of names that the client asked for.
        """
        named = zip(self.names, answer.tolist(), strict=True)
        return {"values": {name: float(f"{value:.7g}") for name, value in named}}


def best_by_name(
    values: NDArray[np.float32], names: Sequence[str], top: int | None
) -> dict[str, float]:
    """Returns rounded values by name: the largest `top`, or all in the order of the names.

    If `top` is None: all, or the largest `TOP` of more than `ALL_UP_TO`.
    """
    count = min(len(names), top or (len(names) if len(names) <= ALL_UP_TO else TOP))
    if count == len(names):
        # Equals Python's round() of each float32, in a fraction of the time.
        rounded = (values.astype(np.float64) * 1e6).round() / 1e6
        return dict(zip(names, rounded.tolist(), strict=True))
    places = np.argpartition(values, -count)[-count:]
    places = places[np.argsort(-values[places], kind="stable")]
    return {names[place]: round(float(values[place]), 6) for place in places.tolist()}
