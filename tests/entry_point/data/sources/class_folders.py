"""Reads a split of class folders without a cache of side indexes, for the tests."""

from pathlib import Path

from entry_point.data.sources.class_folders import list_classes
from entry_point.data.sources.listing import Labels
from entry_point.data.sources.source import FileSource
from entry_point.data.sources.splits import divided, named


def class_folder(root: Path, split: str = "train", val_fraction: float | None = None) -> FileSource:
    listing = list_classes(root)
    assert isinstance(listing.labels, Labels)
    splits = divided(named(listing.words), listing.names, val_fraction, str(root))
    source = listing.open(splits.rows[split], listing.labels)
    assert isinstance(source, FileSource)
    return source
