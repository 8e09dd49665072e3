"""The rows that `entry_point.predict` writes: answers of a model, or its features."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import nn

from entry_point.data.errors import DataError
from entry_point.job.program import UserError
from entry_point.job.whole_file import replacing
from entry_point.model_folder import Answers, Model
from entry_point.prediction_masks import mask_file

_COLUMNS: dict[str, dict[str, Any]] = {
    "classification": {"class": pl.String, "class_index": pl.Int32, "probability": pl.Float32},
    "multilabel": {"labels": pl.List(pl.String)},
    "regression": {},
    "segmentation": {"mask": pl.String},
}
"""What the model's kind predicts, before the scores."""
_NO_FEATURES = (
    "output=features: the model does not end in a linear layer that takes one vector per image; "
    "use output=scores"
)
_ROW_GROUP_BYTES = 1 << 24
"""Rows that a reader, and the writer, keep in memory at once."""
_FORMULA = r"^[=+\-@\t\r\n]"
_BETWEEN_LABELS = "|"
MADE_FROM, NAMES = "made_from", "names"
"""Keys of the file's metadata: the fingerprint; and the names of the scores, as a JSON list."""


@dataclass(frozen=True)
class PredictionTable:
    """One row per image: its name, what the model makes of it, or why it could not be read."""

    model: Model
    output: str
    """`scores` or `features`: the name of the list column, float32 (width,)."""
    width: int

    @property
    def has_masks(self) -> bool:
        """Whether the answers are masks. Their scores are the classes' shares of the pixels."""
        return self.model.kind == "segmentation" and self.output == "scores"

    @property
    def schema(self) -> dict[str, Any]:
        predicted = {} if self.output == "features" else _COLUMNS[self.model.kind]
        vectors = {self.output: pl.Array(pl.Float32, self.width)}
        return {"path": pl.String, **predicted, **vectors, "error": pl.String}

    def metadata(self, made_from: str) -> dict[str, str]:
        """Of the file."""
        names = json.dumps(self.model.names, ensure_ascii=False)
        return {MADE_FROM: made_from} | ({NAMES: names} if self.output == "scores" else {})

    def rows(
        self, names: Sequence[str], answers: torch.Tensor, errors: Sequence[str | None]
    ) -> pl.DataFrame:
        """One row for each of `names`; `answers`, float32 (images, width), are those of the images
        without an error."""
        good = np.array([error is None for error in errors])
        values = np.zeros((len(names), self.width), np.float32)
        values[good] = answers.numpy()
        # polars' text is UTF-8; the bytes of a file name need not be.
        texts = [name.encode(errors="backslashreplace").decode() for name in names]
        predicted = {} if self.output == "features" else self._predicted(values)
        if self.has_masks:
            predicted = {"mask": [mask_file(text) for text in texts]}
        columns = {"path": texts, **predicted, self.output: values, "error": errors}
        frame = pl.DataFrame(columns, schema=self.schema)
        return frame.with_columns(
            pl.when(pl.Series(good)).then(pl.col(name)) for name in (*predicted, self.output)
        )

    def _predicted(self, values: NDArray[np.float32]) -> dict[str, Any]:
        """The columns of _COLUMNS."""
        names = self.model.names
        if self.model.kind == "classification":
            likeliest = values.argmax(1)
            return {
                "class": [names[place] for place in likeliest],
                "class_index": likeliest,
                "probability": values.max(1),
            }
        if self.model.kind == "multilabel":
            reached = values.astype(np.float64) >= self.model.threshold
            return {"labels": [[names[place] for place in np.flatnonzero(row)] for row in reached]}
        return {}


def write_parquet(
    file: Path, table: PredictionTable, made_from: str, batches: Iterable[pl.DataFrame]
) -> None:
    """Write rows, batch by batch; memory holds a few row groups.

    polars writes a Parquet file at once: until then, the rows lie in a folder beside the file.
    Raises UserError for a disk that is full, and what `batches` raises.
    """
    row_group = max(1, _ROW_GROUP_BYTES // (4 * table.width))
    folder = file.with_name(f"{file.name}.rows")
    shutil.rmtree(folder, ignore_errors=True)  # of a killed process
    folder.mkdir()
    try:
        parts = _write_parts(folder, pl.DataFrame(schema=table.schema), row_group, batches)
        with _writing(file):
            pl.scan_ipc(parts, glob=False).sink_parquet(
                file,
                compression="zstd",
                compression_level=1,
                row_group_size=row_group,
                metadata=table.metadata(made_from),
            )
    finally:
        shutil.rmtree(folder)


def write_csv(parquet: Path, file: Path) -> None:
    """Write the rows of `write_parquet` as CSV, with one column for each score or feature.

    A cell that a spreadsheet would take for a formula begins with an apostrophe, see
    https://owasp.org/www-community/attacks/CSV_Injection. Raises UserError for a disk that is full.
    """
    columns: list[pl.Expr] = []
    for name, kind in pl.read_parquet_schema(parquet).items():
        if isinstance(kind, pl.Array):
            width = range(kind.size)
            names = json.loads(pl.read_parquet_metadata(parquet).get(NAMES, "null")) or width
            columns += [pl.col(name).arr.get(i).alias(f"{name}.{names[i]}") for i in width]
        elif kind.is_numeric():
            columns.append(pl.col(name))
        else:
            text = pl.col(name) if kind == pl.String else pl.col(name).list.join(_BETWEEN_LABELS)
            columns.append(text.str.replace(_FORMULA, "'$0"))
    with _writing(file), replacing(file) as unfinished:
        frame = pl.scan_parquet(parquet, glob=False).select(columns)
        frame.sink_csv(unfinished, quote_style="non_numeric")


def _write_parts(
    folder: Path, held: pl.DataFrame, row_group: int, batches: Iterable[pl.DataFrame]
) -> list[Path]:
    """Write the rows to files of `row_group` rows or a few more, without compression."""
    parts: list[Path] = []

    def write() -> None:
        parts.append(folder / f"{len(parts)}.arrow")
        with _writing(parts[-1]):
            held.write_ipc(parts[-1])

    for batch in batches:
        held = held.vstack(batch)
        if len(held) >= row_group:
            write()
            held = held.clear()
    if len(held) or not parts:
        write()
    return parts


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Name the file in the errors of polars."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(f"{file} cannot be written: {' '.join(str(error).split())}") from error


def build_table(model: Model, output: str) -> PredictionTable:
    """The table of a model's `scores`, or of its `features`, by one prediction of a black image.

    Raises DataError if the model has no features.
    """
    black = torch.zeros(1, 3, model.image_size, model.image_size, dtype=torch.uint8)
    if output == "features":
        model = _with_features(model, black)
    answers = model.predict(black)
    if answers.dim() != 2 and (model.kind, output) != ("segmentation", "scores"):
        raise DataError(_NO_FEATURES)
    return PredictionTable(model, output, answers.shape[1])


def _with_features(model: Model, image: torch.Tensor) -> Model:
    """The model, answering with what its last linear layer gets, float32 (N, features).

    A model of numbers that does not end in a linear layer answers with its features already: the
    encoders of self-supervised training do.
    """
    network = cast(Answers, model.answers).network
    calls: list[tuple[nn.Module, torch.Tensor, torch.Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        calls.append((layer, inputs[0], output))

    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_hook(note) for layer in (*layers, network)]
    model.predict(image)
    for hook in hooks:
        hook.remove()
    *linear, (_, _, outputs) = calls
    if linear and linear[-1][1].dim() == 2 and torch.equal(linear[-1][2], outputs):
        return replace(model, answers=_Features(model.answers, linear[-1][0]))
    if model.kind == "regression":
        return model
    raise DataError(_NO_FEATURES)


class _Features(nn.Module):
    """Answers with what `layer`, a part of `answers`, gets."""

    def __init__(self, answers: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self._answers, self._found = answers, torch.empty(0)
        layer.register_forward_pre_hook(self._keep)

    def _keep(self, _layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._found = inputs[0]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self._answers(images)
        return self._found
