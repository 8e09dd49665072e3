"""Writes tables of labels, and opens them, for the tests."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from entry_point.config.data_config import DataConfig, TableConfig
from entry_point.data.loader import open_source
from entry_point.data.sources.source import Source

Rows = Sequence[dict[str, Any]]


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


def config(file: Path, *, table: TableConfig | None = None, **data: Any) -> DataConfig:
    data = {"image_size": 48, "resize": 56, **data}
    return DataConfig(format="manifest", root=str(file), table=table or TableConfig(), **data)


def opened(file: Path, *, table: TableConfig | None = None, **data: Any) -> tuple[Source, Source]:
    """Both splits."""
    settings = config(file, table=table, **data)
    return open_source(settings, "train", file), open_source(settings, "val", file)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Path, class and split of each file of a folder with splits and classes."""
    return [
        {"path": f"{split}/{name}/{file.name}", "label": name, "split": split}
        for split in ("train", "val")
        for name in sorted(entry.name for entry in (folder / split).iterdir())
        for file in sorted((folder / split / name).iterdir())
    ]
