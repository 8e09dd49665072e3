"""Writes tables of labels, and opens them, for the tests."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from entry_point.data.sources.source import Source
from tests.entry_point.data.loaders import source_of

Rows = Sequence[dict[str, Any]]
CELLS: dict[str, list[Any]] = {
    "class": ["dog", "cat", "bird"],
    "labels": [["cat", "dog"], [], ["bird"]],
    "numbers": [0.1, 2.5, -3.25],
}
"""Labels of each kind."""


def write(file: Path, rows: Rows) -> Path:
    """The rows in the format that the file's name says. A CSV joins lists with `|`."""
    if file.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows)), file)
    elif file.suffix in (".csv", ".tsv"):
        with file.open("w", encoding="utf-8", newline="") as opened:
            writer = csv.writer(opened, delimiter="\t" if file.suffix == ".tsv" else ",")
            writer.writerow(rows[0])
            writer.writerows(map(_cells, rows))
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def _cells(row: dict[str, Any]) -> list[Any]:
    return ["|".join(cell) if isinstance(cell, list) else cell for cell in row.values()]


def opened(file: Path, **data: Any) -> tuple[Source, Source]:
    """Both splits."""
    train, val = (source_of(file, split, format="manifest", **data) for split in ("train", "val"))
    return train, val


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Path, class and split of each file of a folder with splits and classes."""
    return [
        {"path": f"{split}/{name}/{file.name}", "label": name, "split": split}
        for split in ("train", "val")
        for name in sorted(entry.name for entry in (folder / split).iterdir())
        for file in sorted((folder / split / name).iterdir())
    ]


def write_tags(file: Path, folder: Path, kind: str) -> Path:
    """A table of such a folder, whose column `tags` has the CELLS of this kind."""
    rows = enumerate(rows_of(folder))
    return write(file, [{**row, "tags": CELLS[kind][i % 3]} for i, row in rows])
