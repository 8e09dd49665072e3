"""Opening a table of a million labeled files in each format: docs/results/data-tables.md.

Memory is the peak growth of a new process that has already imported everything.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median

import pyarrow
import pyarrow.parquet

from benchmarks import measure
from entry_point.config.data_config import DataConfig, TableConfig
from entry_point.data.loader import open_training_set

CLASSES, EACH, ROUNDS = 1000, 1000, 5
PREFIX = "s3://bucket/photos/"
FORMATS = {
    "CSV": "labels.csv",
    "Parquet": "labels.parquet",
    "JSON lines": "labels.jsonl",
    "augmented manifest": "output.manifest",
}


def rows() -> Iterator[tuple[str, str]]:
    """Path and class of each file, class by class."""
    for label in range(CLASSES):
        name = f"n{label:08d}"
        for number in range(EACH):
            yield f"{name}/{name}_{number}.jpg", name


def write_files(folder: Path) -> None:
    for label in range(CLASSES):
        (folder / f"n{label:08d}").mkdir(parents=True)
    for path, _ in rows():
        os.mknod(folder / path)


def write_tables(folder: Path) -> None:
    with (folder / FORMATS["CSV"]).open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows()])
    columns = dict(zip(("path", "label"), map(list, zip(*rows(), strict=True)), strict=True))
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / FORMATS["Parquet"])
    plain = ({"path": path, "label": label} for path, label in rows())
    _write_lines(folder / FORMATS["JSON lines"], plain)
    described = (_ground_truth(path, label) for path, label in rows())
    _write_lines(folder / FORMATS["augmented manifest"], described)


def _ground_truth(path: str, label: str) -> dict[str, object]:
    """Returns a row as SageMaker Ground Truth writes it."""
    metadata = {
        "class-name": label,
        "job-name": "labeling-job/photos",
        "confidence": 0.95,
        "type": "groundtruth/image-classification",
        "human-annotated": "yes",
        "creation-date": "2026-10-18T22:18:13.527256",
    }
    return {"source-ref": PREFIX + path, "class": int(label[1:]), "class-metadata": metadata}


def _write_lines(file: Path, records: Iterable[Mapping[str, object]]) -> None:
    with file.open("w") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)


def open_here(table: Path, images: Path) -> tuple[float, float]:
    """CPU seconds and peak megabytes to open both splits, with a check of every file."""
    prefix = PREFIX if table.suffix == ".manifest" else None
    settings = TableConfig(prefix=prefix)
    data = DataConfig(
        format="manifest", root=str(table), images=str(images), val_fraction=0.1, table=settings
    )
    with measure.peak_growth() as growth:
        began = time.process_time()
        dataset = open_training_set(data, images)  # once, as a job does
        train, val = dataset.source("train"), dataset.source("val")
        seconds = time.process_time() - began
    if len(train) + len(val) != CLASSES * EACH:
        raise RuntimeError(f"{table} holds {len(train)} + {len(val)} usable rows")
    return seconds, growth.megabytes


def opened(table: Path, images: Path) -> tuple[float, float]:
    """open_here in a new process, whose memory shows no earlier peak."""
    module = "benchmarks.data.data_tables"
    output = subprocess.check_output([sys.executable, "-m", module, str(table), str(images)])
    seconds, megabytes = json.loads(output)
    return seconds, megabytes


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder, "images")
        write_files(images)
        write_tables(Path(folder))
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in FORMATS}
        for _ in range(ROUNDS):
            for name, file in FORMATS.items():
                found[name].append(opened(Path(folder, file), images))
    table = [
        [name, f"{median(s for s, _ in runs):.2f}", f"{max(m for _, m in runs):.0f}"]
        for name, runs in found.items()
    ]
    method = (
        f"{CLASSES * EACH:,} rows, {EACH:,} empty files in each of {CLASSES:,} folders, all looked "
        "up; a class per image, `data.val_fraction=0.1`, both splits opened. CPU seconds (user and "
        f"system): medians of {ROUNDS} alternating rounds, each in a new process, warm page cache. "
        "Memory: largest peak growth of a process that has imported everything."
    )
    text = measure.table(["", "CPU seconds", "MB"], table)
    title = "Opening a table of a million files"
    sys.stdout.write(measure.write("data-tables", "data", title, method, [text]))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(open_here(Path(sys.argv[1]), Path(sys.argv[2]))))
    else:
        main()
