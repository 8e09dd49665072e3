"""Which columns of a table hold the paths, the labels and the splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from entry_point.config.config_errors import near
from entry_point.config.data_config import TableConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.table.bad_row import quoted
from entry_point.data.sources.table.columns import METADATA

PATHS = ("path", "file", "file_name", "filename", "image", "image_path", "source-ref")
LABELS = ("label", "labels", "class")
SPLIT = "split"


@dataclass(frozen=True)
class Chosen:
    path: str
    labels: list[str]
    split: str | None

    @property
    def all(self) -> list[str]:
        return [self.path, *self.labels, *([self.split] if self.split else [])]


def choose_columns(file: Path, names: Sequence[str], settings: TableConfig, key: str) -> Chosen:
    """The columns that `settings`, or else their names say; `key` is the settings' group.

    Raises DataError for a column that is missing or occurs twice.
    """
    path = choose_path(file, names, settings.path, key)
    labels = list(settings.labels) or _label_column(file, names, key)
    split = settings.split or (SPLIT if SPLIT in names else None)
    chosen = Chosen(path, labels, split)
    for name in chosen.all:
        _require_one(file, names, name)
        if chosen.all.count(name) > 1:
            raise DataError(f"{file}: the column {quoted(name)} cannot hold two things")
    return chosen


def choose_path(file: Path, names: Sequence[str], given: str | None, key: str) -> str:
    """The column of the paths: the `given` one, or else by its name. Raises DataError."""
    path = given or _first(file, names, PATHS, "the images' paths", f"{key}.path")
    _require_one(file, names, path)
    return path


def _require_one(file: Path, names: Sequence[str], name: str) -> None:
    if name not in names:
        raise DataError(f"{file} has no column {quoted(name)}{near(name, names)}{_has(names)}")
    if list(names).count(name) > 1:
        raise DataError(f"{file} has two columns {quoted(name)}: rename one")


def _label_column(file: Path, names: Sequence[str], key: str) -> list[str]:
    described = [name for name in names if name + METADATA in names]
    if not set(LABELS) & set(names) and len(described) == 1:
        return described
    return [_first(file, names, LABELS, "labels", f"{key}.labels")]


def _first(file: Path, names: Sequence[str], usual: Sequence[str], what: str, setting: str) -> str:
    found = next((name for name in usual if name in names), None)
    if found is None:
        raise DataError(
            f"{file} has no column of {what}, which is usually called {', '.join(usual)}: set "
            f"{setting}=COLUMN{_has(names)}"
        )
    return found


def _has(names: Sequence[str]) -> str:
    return f"; it has {', '.join(map(quoted, names[:20])) or 'no columns'}"
