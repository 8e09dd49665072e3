"""Your own sources: where images and their labels come from.

    make local-train ARGS="data.format=project.sources.by_file_name data.root=FOLDER"

A source is a function that takes the dataset's folder, the split, and what `data.kwargs` holds. It
returns a `FileSource`, or anything else with the parts that `entry_point/data/sources/source.py`
describes.
"""

from __future__ import annotations

from pathlib import Path

from entry_point.data.sources.source import FileSource
from entry_point.data.sources.splits import chosen_for_val


def by_file_name(
    root: Path, split: str, separator: str = "_", val_fraction: float = 0.2
) -> FileSource:
    """Returns a folder of JPEGs whose names begin with their class: `tabby_cat_001.jpg` is a
    `tabby_cat`.

    A hash of the names chooses the images to validate on.
    """
    files = sorted(root.glob("*.jpg"))
    classes = sorted({_class_of(file, separator) for file in files})
    in_val = chosen_for_val([file.name for file in files], val_fraction)
    chosen = [file for file, val in zip(files, in_val, strict=True) if val == (split == "val")]
    labels = [classes.index(_class_of(file, separator)) for file in chosen]
    return FileSource(chosen, labels, classes)


def _class_of(file: Path, separator: str) -> str:
    return file.stem.rpartition(separator)[0]
