"""The table that `entry_point.predict` writes: answers of a model, or its features."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import cast

import polars as pl
import torch
from torch import Tensor, nn

from entry_point.data.errors import DataError
from entry_point.data.plan.crops import Geometry
from entry_point.job.program import UserError
from entry_point.job.whole_file import replacing
from entry_point.model_folder import Answers, Model

_ROW_GROUP_BYTES = 1 << 24
"""Size of the rows that the writer, and later a reader, keep in memory at once."""
_MOST_NAME_BYTES = 220
"""Most bytes of an image's name in its PNG's: file systems allow 255, and temporary names need
some."""
_FORMULA = r"^[=+\-@\t\r\n]"
_BETWEEN_LABELS = "|"
MADE_FROM, STATES, NAMES = "made_from", "states", "names"
"""Keys of the file's metadata: two hashes, see `Prediction`; the names of the scores, as a JSON
list."""


class PredictionTable:
    """Makes a row per image: its name, the model's answer, or why it could not be read."""

    answer: Callable[[Tensor], Tensor]
    """uint8 images `(N, 3, image_size, image_size)` -> float32 `(N, ...)`, on the CPU."""
    nothing: Tensor
    """Answers for no images, float32 `(0, ...)`."""
    schema: pl.Schema
    """`path`, the columns of the answers, with the name of the file for a PNG, and `error`."""

    def __init__(self, model: Model, output: str, folder: Path) -> None:
        """Predicts a black image to find the columns.

        Args:
            model: The model to predict with.
            output: `scores`: the model's answers, see `Task.rows`; or `features`: a column of
                vectors.
            folder: Gets the PNG files of the answers.

        Raises DataError if the model has no features.
        """
        self.model, self.output, self._folder = model, output, folder
        black = torch.zeros(1, 3, model.image_size, model.image_size, dtype=torch.uint8)
        self.answer = _features(model, black) if output == "features" else model.predict
        self.nothing = self.answer(black)[:0]
        kinds = self._columns(self.nothing, None).schema
        columns = {name: pl.String if kind == pl.Binary else kind for name, kind in kinds.items()}
        self.schema = pl.Schema({"path": pl.String, **columns, "error": pl.String})

    def rows(
        self,
        names: Sequence[str],
        answers: Tensor,
        geometry: Geometry | None,
        errors: Sequence[str | None],
    ) -> pl.DataFrame:
        """Returns a row for each of `names`, and writes the PNG files. `answers` and `geometry` are
        those of the images without an error."""
        # Text in polars is UTF-8; file names may hold any bytes.
        texts = [name.encode(errors="backslashreplace").decode() for name in names]
        good = [text for text, error in zip(texts, errors, strict=True) if error is None]
        columns = self._columns(answers, geometry).to_dict()
        for name, column in columns.items():
            if column.dtype == pl.Binary:
                files = [png_file(name, text) for text in good]
                for file, content in zip(files, column, strict=True):
                    with replacing(self._folder / file) as unfinished:
                        unfinished.write_bytes(content)
                columns[name] = pl.Series(files, dtype=pl.String)
        places = iter(range(len(good)))
        row_of = pl.Series(
            [next(places) if error is None else None for error in errors], dtype=pl.UInt32
        )
        spread = {name: column.gather(row_of) for name, column in columns.items()}
        return pl.DataFrame({"path": texts, **spread, "error": errors}, self.schema)

    def _columns(self, answers: Tensor, geometry: Geometry | None) -> pl.DataFrame:
        """Returns the columns of the answers, a row for each."""
        if self.output == "features":
            column = pl.Array(pl.Float32, answers.shape[1])
            return pl.DataFrame({"features": answers.numpy()}, {"features": column})
        sizes = []
        if len(answers):
            assert geometry is not None
            sizes = list(zip(geometry.heights.tolist(), geometry.widths.tolist(), strict=True))
        return self.model.task.rows(answers, sizes)


def png_file(column: str, name: str) -> str:
    """Returns the path of an image's PNG below the folder of predictions: `masks/a/1.jpg.png`. A
    hash replaces the beginning of a long name."""
    parts = ["_" if part == ".." else part for part in PurePosixPath(f"/{name}").parts[1:]]
    if len(last := parts[-1].encode()) > _MOST_NAME_BYTES:
        end = last[-_MOST_NAME_BYTES // 2 :].decode(errors="ignore")
        parts[-1] = f"{sha256(last).hexdigest()}{end}"
    return f"{column}s/{'/'.join(parts)}.png"


def _features(model: Model, image: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns a function that returns the inputs of the model's last linear layer, float32
    `(N, features)`; predicting `image` finds that layer.

    A model of numbers that does not end in a linear layer, such as an encoder of self-supervised
    training, answers with its features already.
    """
    network = cast(Answers, model.answers).network
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []
    kept: list[Tensor] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls.append((layer, inputs[0], output))

    def keep(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        kept[:] = inputs[:1]

    def features(images: Tensor) -> Tensor:
        model.predict(images)
        return kept[0].float().cpu()

    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_hook(note) for layer in (*layers, network)]
    answers = model.predict(image)
    for hook in hooks:
        hook.remove()
    *linear, (_, _, outputs) = calls
    if linear and linear[-1][1].dim() == 2 and torch.equal(linear[-1][2], outputs):
        linear[-1][0].register_forward_pre_hook(keep)
        return features
    if answers.dim() == 2 and model.task.rows(answers[:0], []).columns == ["scores"]:
        return model.predict
    raise DataError(
        "output=features: the model does not end in a linear layer that takes one vector per "
        "image; use output=scores"
    )


# -- files


def write_parquet(
    file: Path, table: PredictionTable, made: dict[str, str], batches: Iterable[pl.DataFrame]
) -> None:
    """Write rows batch by batch, with the metadata `made`, while memory holds a few row groups.

    polars writes a Parquet file at once: until then, rows are stored in a folder beside the file.
    Raises OSError, which names the file, UserError, and errors of `batches`.
    """
    row_group = max(1, _ROW_GROUP_BYTES // (4 * table.nothing.shape[1]))
    scores = table.model.task.names if table.output == "scores" else []
    metadata = made | {NAMES: json.dumps(scores, ensure_ascii=False)}
    folder = file.with_name(f"{file.name}.rows")
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
    folder.mkdir()
    parts: list[Path] = []
    try:
        for frame in _row_groups(batches, pl.DataFrame(schema=table.schema), row_group):
            parts.append(folder / f"{len(parts)}.arrow")
            with _writing(parts[-1]):
                frame.write_ipc(parts[-1])
        with _writing(file):
            pl.scan_ipc(parts, glob=False).sink_parquet(
                file,
                compression="zstd",
                compression_level=1,
                row_group_size=row_group,
                metadata=metadata,
            )
    finally:
        shutil.rmtree(folder)


def _row_groups(
    batches: Iterable[pl.DataFrame], held: pl.DataFrame, least: int
) -> Iterator[pl.DataFrame]:
    """Yields all rows in tables of at least `least` rows, except for the last."""
    for batch in batches:
        held = held.vstack(batch)
        if len(held) >= least:
            yield held
            held = held.clear()
    yield held


def write_csv(frame: pl.LazyFrame, file: Path, names: Sequence[str] = ()) -> None:
    """Write a table as CSV, with a column for each score, feature or other number of an array;
    `names` are the names of the scores. Values of your own task other than text and numbers become
    JSON.

    Raises OSError, which names the file, and UserError.
    """
    columns = _csv_columns(frame.collect_schema(), names)
    with _writing(file), replacing(file) as unfinished:
        frame.select(columns).sink_csv(unfinished, quote_style="non_numeric")


def _csv_columns(schema: Mapping[str, pl.DataType], names: Sequence[str]) -> list[pl.Expr]:
    """Returns the columns of a table for a CSV file.

    A cell that a spreadsheet would take for a formula gets an apostrophe in front, see
    https://owasp.org/www-community/attacks/CSV_Injection.
    """
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


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Name the file in errors of polars, and turn those of the disk into OSError."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = " ".join(str(error).split())
        if of_disk := re.search(r"\(os error (\d+)\)", reason):
            number = int(of_disk[1])
            raise OSError(number, os.strerror(number), str(file)) from error
        raise UserError(f"{file} cannot be written: {reason}") from error
