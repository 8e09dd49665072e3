"""Reads a split of class folders without a cache of side indexes, for the tests."""

from pathlib import Path

from entry_point.data.sources.class_folders import list_classes
from entry_point.data.sources.folder import Tree
from entry_point.data.sources.rows import Files, Labels
from entry_point.data.sources.source import RangeSource
from entry_point.data.sources.splits import divided, named


def class_folder(
    root: Path, split: str = "train", val_fraction: float | None = None
) -> RangeSource:
    rows = list_classes(Tree(root))
    assert isinstance(rows.labels, Labels)
    splits = divided(named(rows.words), rows.names, val_fraction, str(root), of_part=False)
    rows = rows.only(splits.rows[split], rows.labels)
    assert isinstance(rows.where, Files) and isinstance(rows.labels, Labels)
    return RangeSource(rows.where, rows.names, rows.labels)
