"""The rows that `entry_point.predict` writes: answers of a model, or its features."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import cast

import polars as pl
import torch
from torch import nn

from entry_point.data.errors import DataError
from entry_point.data.plan.crops import Geometry
from entry_point.job.program import UserError
from entry_point.job.whole_file import replacing
from entry_point.model_folder import Answers, Model

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
    """`scores`: the model's answers, see `Task.rows`; or `features`: a column of vectors."""
    folder: Path
    """Gets the PNG files of the answers."""
    columns: pl.Schema
    """Those of `output`."""
    no_answers: torch.Tensor
    """The model's answers for no images, float32 `(0, ...)`."""

    @property
    def schema(self) -> pl.Schema:
        files = {name: pl.String for name, kind in self.columns.items() if kind == pl.Binary}
        return pl.Schema({"path": pl.String} | {**self.columns} | files | {"error": pl.String})

    def metadata(self, made_from: str) -> dict[str, str]:
        """Of the file."""
        names = json.dumps(self.model.names, ensure_ascii=False)
        return {MADE_FROM: made_from} | ({NAMES: names} if self.output == "scores" else {})

    def rows(
        self,
        names: Sequence[str],
        answers: torch.Tensor,
        geometry: Geometry | None,
        errors: Sequence[str | None],
    ) -> pl.DataFrame:
        """Returns one row for each of `names`; `answers` and `geometry` are of the images without
        an error. Writes their PNG files."""
        # polars' text is UTF-8; the bytes of a file name need not be.
        texts = [name.encode(errors="backslashreplace").decode() for name in names]
        answered = _rows(self.model, self.output, answers, geometry)
        good = [text for text, error in zip(texts, errors, strict=True) if error is None]
        for column in (name for name, kind in self.columns.items() if kind == pl.Binary):
            files = [png_file(column, text) for text in good]
            for file, content in zip(files, answered[column], strict=True):
                path = self.folder / file
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as unfinished:
                    unfinished.write_bytes(content)
            answered = answered.with_columns(pl.Series(column, files, pl.String))
        places = iter(range(len(good)))
        rows = pl.Series(
            [next(places) if error is None else None for error in errors], dtype=pl.UInt32
        )
        named = {"path": texts, **answered.select(pl.all().gather(rows)).to_dict(), "error": errors}
        return pl.DataFrame(named, self.schema)


def _rows(
    model: Model, output: str, answers: torch.Tensor, geometry: Geometry | None
) -> pl.DataFrame:
    if output == "features":
        column = pl.Array(pl.Float32, answers.shape[1])
        return pl.DataFrame({"features": answers.numpy()}, {"features": column})
    sizes = []
    if len(answers):
        assert geometry is not None
        sizes = list(zip(geometry.heights.tolist(), geometry.widths.tolist(), strict=True))
    return model.task.rows(answers, sizes)


def png_file(column: str, name: str) -> str:
    """Returns where an image's PNG is, below the predictions' folder: `masks/a/1.jpg.png`."""
    parts = ["_" if part == ".." else part for part in PurePosixPath(f"/{name}").parts[1:]]
    return f"{column}s/{'/'.join(parts)}.png"


def write_parquet(
    file: Path, table: PredictionTable, made_from: str, batches: Iterable[pl.DataFrame]
) -> None:
    """Write rows, batch by batch; memory holds a few row groups.

    polars writes a Parquet file at once: until then, the rows lie in a folder beside the file.
    Raises UserError for a disk that is full, and what `batches` raises.
    """
    row_group = max(1, _ROW_GROUP_BYTES // (4 * table.no_answers.shape[1]))
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
    """Write the rows of `write_parquet` as CSV, with one column for each score, feature or other
    number of an array. What your own task answers beside text and numbers is JSON.

    A cell that a spreadsheet would take for a formula begins with an apostrophe, see
    https://owasp.org/www-community/attacks/CSV_Injection. Raises UserError for a disk that is full.
    """
    names = json.loads(pl.read_parquet_metadata(parquet).get(NAMES, "[]"))
    with _writing(file), replacing(file) as unfinished:
        columns = csv_columns(pl.read_parquet_schema(parquet), names)
        frame = pl.scan_parquet(parquet, glob=False).select(columns)
        frame.sink_csv(unfinished, quote_style="non_numeric")


def csv_columns(schema: Mapping[str, pl.DataType], names: Sequence[str] = ()) -> list[pl.Expr]:
    """Returns the columns of a table as a CSV file has them; `names` are those of its scores."""
    columns: list[pl.Expr] = []
    for name, kind in schema.items():
        column = pl.col(name)
        if isinstance(kind, pl.Array):
            is_named = name == "scores" and len(names) == kind.size
            parts = enumerate(names if is_named else range(kind.size))
            columns += [column.arr.get(i).alias(f"{name}.{part}") for i, part in parts]
        elif kind.is_numeric():
            columns.append(column)
        else:
            if kind == pl.List(pl.String):
                column = column.list.join(_BETWEEN_LABELS)
            elif kind != pl.String:
                column = column.map_elements(partial(json.dumps, default=list), pl.String)
            columns.append(column.str.replace(_FORMULA, "'$0"))
    return columns


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


def build_table(model: Model, output: str, folder: Path) -> PredictionTable:
    """Returns the table of a model's `scores`, or of its `features`, by one prediction of a black
    image.

    Raises DataError if the model has no features.
    """
    black = torch.zeros(1, 3, model.image_size, model.image_size, dtype=torch.uint8)
    if output == "features":
        model = _with_features(model, black)
    answer = model.predict(black)
    if output == "features" and answer.dim() != 2:
        raise DataError(_NO_FEATURES)
    columns = _rows(model, output, answer[:0], None).schema
    return PredictionTable(model, output, folder, columns, answer[:0])


def _with_features(model: Model, image: torch.Tensor) -> Model:
    """Returns the model, answering with what its last linear layer gets, float32 (N, features).

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
    if model.task.rows(model.predict(image)[:0], []).columns == ["scores"]:
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
