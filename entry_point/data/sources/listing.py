"""What a reader says of a dataset: a row for each image. It decides nothing.

`labels` decides what the cells mean, `splits` which images are `train`, `val` and `test`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from entry_point.data.errors import DataError
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.source import PathList, Source, SourceKind

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json", ".manifest")
"""What the names of tables end in."""
LIST_SUFFIXES = (".txt", ".lst")
"""And of lists of images and labels, which have no header."""
SPLIT_TABLES = (*(f"metadata{suffix}" for suffix in TABLE_SUFFIXES), "_classes.csv")
"""Tables in the folders of splits: Hugging Face's imagefolder, and Roboflow's labels."""
LABEL_NAMES = ("label", "labels", "class", "cls", "target", "class_id")
"""The usual names of columns of labels: the first that a table has is read."""


@dataclass(frozen=True)
class Labels:
    """The labels of all images."""

    kind: SourceKind
    names: list[str]
    """Classes, labels, or targets."""
    values: NDArray[Any]
    """int32 or int64 (N,) of kind `class`; uint8 or float32 (N, names) of kind `labels`; float32
    (N, names) of kind `numbers`; anything per image of kind `targets`."""

    @classmethod
    def unknown(cls, images: int) -> Labels:
        """Of images that have no labels, or whose labels nobody needs."""
        return cls("class", [], np.full(images, -1))


@dataclass(frozen=True)
class Cells:
    """The labels of all images as they stand."""

    columns: Sequence[Any]
    """polars Series of text, or one of lists of text."""
    place: Path
    """The file or folder, for messages."""
    error: Callable[[int, str], DataError]
    """Makes an error that names the row, or the file, of the image at a place."""
    order: Sequence[str] = ()
    """All classes in their order, where the dataset itself names them."""


@dataclass(frozen=True)
class Words:
    """What tells the splits."""

    told_by: str
    """Where the words stand, as in "the folders"."""
    words: Sequence[str]
    """Names of SPLITS, or what stands there instead; "" for nothing."""
    of: NDArray[np.integer]
    """The place of each image's word in `words`."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many images, or files of them, are not listed for their word, which names no split."""

    @classmethod
    def none(cls, images: int) -> Words:
        return cls("", [""], np.zeros(images, np.int8))


@dataclass(frozen=True)
class Listing:
    """The images of a dataset, of all splits."""

    what: str
    """What was found there, as in "2 tar files"."""
    names: PathList
    """By which a hash divides the images into splits."""
    labels: Labels | Cells
    """Labels where the dataset says by itself what they mean."""
    words: Words
    open: Callable[[Ints, Labels], Source]
    """The source of these rows, ascending, with labels of all."""
    jpegs: int | None = None
    """How many are JPEGs by their names; None if names do not tell."""
    check: Callable[[dict[str, Ints]], None] | None = None
    """Raises DataError for images of these splits that are not there."""

    def __len__(self) -> int:
        return len(self.names)
