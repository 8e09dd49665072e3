"""The result of a reader: a row for each image of a dataset, without any interpretation.

`labels` interprets the cells, `splits` decides which images are `train`, `val` and `test`, and
`dataset` opens the rows of a split as a source.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self, get_args

import numpy as np
from numpy.typing import NDArray

from entry_point.data.errors import DataError
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.dataset_description import Kind
from entry_point.data.sources.file_bytes import FileState
from entry_point.job.text import printable

SourceKind = Kind | Literal["targets"]
KINDS = (*get_args(Kind), "targets")

JPEG_SUFFIXES = (".jpg", ".jpeg", ".jfif")
IMAGE_SUFFIXES = (
    *JPEG_SUFFIXES,
    *(".png", ".webp", ".avif", ".gif", ".bmp", ".ppm", ".pgm", ".tif", ".tiff"),
)
"""Suffixes of the formats that are read, see decode/pillow.py."""
LABEL_NAMES = ("label", "labels", "class", "cls", "target", "class_id")
"""The usual names of columns and JSON keys of labels: the first that exists is read."""
SPLIT = "split"
"""The usual name of the column of splits."""


@dataclass(frozen=True)
class PathList:
    """Paths in one buffer: a million Python strings would take 100 MB, copied by every fork."""

    text: NDArray[np.uint8]
    """UTF-8, with a NUL after each path; file names may hold other bytes."""
    ends: Ints
    """End of each path."""

    @classmethod
    def of_names(cls, names: Iterable[str]) -> PathList:
        """Returns a list of paths; file names may hold any bytes."""
        return cls.of("".join(f"{name}\0" for name in names).encode(errors="surrogateescape"))

    @classmethod
    def of(cls, encoded: bytes) -> PathList:
        """Returns a list of encoded paths, each with a NUL after it."""
        text = np.frombuffer(bytearray(encoded), np.uint8)
        return cls(text, np.flatnonzero(text == 0))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> str:
        start = int(self.ends[row - 1]) + 1 if row else 0
        return self.text[start : int(self.ends[row])].tobytes().decode(errors="surrogateescape")

    def __iter__(self) -> Iterator[str]:
        text = self.text.tobytes().decode(errors="surrogateescape")
        return iter(text.split("\0")[:-1])

    def encoded(self) -> list[bytes]:
        return self.text.tobytes().split(b"\0")[:-1]

    def only(self, rows: Ints) -> PathList:
        """Returns the paths of these ascending rows."""
        chosen = np.zeros(len(self), bool)
        chosen[rows] = True
        return PathList.of(self.text[np.repeat(chosen, np.diff(self.ends, prepend=-1))].tobytes())

    @property
    def jpegs(self) -> int:
        """Returns the number of JPEGs, by their names."""
        text = self.text.tobytes().lower()
        return sum(text.count(f"{suffix}\0".encode()) for suffix in JPEG_SUFFIXES)


class Names(Protocol):
    """Texts by number: a PathList, or an object that reads them from a file."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, row: int, /) -> str: ...


class Range(NamedTuple):
    """The position of an image in a file."""

    file: str
    offset: int = 0
    length: int | None = None
    """Length in bytes; None for a whole file."""
    state: FileState | None = None
    """State of the file when it was listed; None if it may have changed since."""


@dataclass(frozen=True)
class Files:
    """Images that are whole files."""

    folder: str
    """The folder of all files; "" if paths are absolute."""
    files: PathList
    """Path of each image below its top."""
    tops: Sequence[str] = ("",)
    """Folders of splits below `folder`."""
    top_of: NDArray[np.integer] | None = None
    """The number of each image's top; None if there is only one."""

    def only(self, rows: Ints) -> Files:
        """Returns the files of these ascending rows: below their common top, else below
        `folder`."""
        files = self.files.only(rows)
        if self.top_of is None:
            return replace(self, files=files)
        top_of = self.top_of[rows]
        used = np.unique(top_of).tolist()
        if len(used) == 1:
            top = self.tops[used[0]]
            return Files(f"{self.folder}/{top}" if top else self.folder, files)
        names = zip(top_of.tolist(), files, strict=True)
        return Files(self.folder, PathList.of_names(f"{self.tops[top]}/{f}" for top, f in names))

    def of(self, index: int) -> Range:
        name = self.files[index]
        return Range(f"{self.folder}/{name}" if self.folder else name)


@dataclass(frozen=True)
class Ranges:
    """Images that are ranges of files."""

    folder: str
    files: Sequence[str]
    """Paths of the files below `folder`."""
    file_of: NDArray[np.integer]
    """Number of each image's file."""
    offsets: Ints
    """Offset of each image in its file, in bytes."""
    lengths: Ints
    """Length of each image in bytes."""
    states: Sequence[FileState] = ()
    """States of the files when they were listed; empty if changes need not be noticed."""

    def only(self, rows: Ints) -> Ranges:
        """Returns the ranges of these ascending rows."""
        offsets, lengths = self.offsets[rows], self.lengths[rows]
        return replace(self, file_of=self.file_of[rows], offsets=offsets, lengths=lengths)

    def of(self, index: int) -> Range:
        number = int(self.file_of[index])
        state = self.states[number] if self.states else None
        start, length = int(self.offsets[index]), int(self.lengths[index])
        return Range(f"{self.folder}/{self.files[number]}", start, length, state)


@dataclass(frozen=True)
class Labels:
    """The interpreted labels of all images."""

    kind: SourceKind
    names: list[str]
    """Names of the classes, labels, or targets."""
    values: NDArray[Any]
    """int32 or int64 (N,) for kind `class`; uint8 or float32 (N, names) for `labels`; float32
    (N, names) for `numbers`; one value of any type per image for `targets`."""

    @classmethod
    def unknown(cls, images: int) -> Labels:
        """Returns labels for images that have none, or whose labels are not needed."""
        return cls("class", [], np.full(images, -1))

    def only(self, rows: Ints) -> Labels:
        return replace(self, values=self.values[rows])


@dataclass(frozen=True)
class Cells:
    """The labels of all images as they are in the dataset."""

    columns: Sequence[Any]
    """polars Series of text, or a single one of lists of text."""
    place: Path
    """The file or folder, for messages."""
    order: Sequence[str] = ()
    """All classes in their order, if the dataset defines them."""


@dataclass(frozen=True)
class Words:
    """The words that may name the splits of images."""

    told_by: str
    """Origin of the words, as in "the folders"."""
    words: Sequence[str]
    """Names of SPLITS, or other words; "" for none."""
    of: NDArray[np.integer]
    """Position of each image's word in `words`."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of images, or of their files, that are not listed, by their word, no split's."""

    @classmethod
    def none(cls, images: int) -> Words:
        return cls("", [""], np.zeros(images, np.int8))


@dataclass(frozen=True)
class Places:
    """The positions of images in the tables that list them, for messages."""

    files: Sequence[Path]
    starts: Sequence[int]
    """Number of the first image of each file, ascending."""
    numbers: NDArray[np.integer]
    """Row of each image in its file."""

    def only(self, rows: Ints) -> Places:
        """Returns the positions of these ascending rows."""
        starts = np.searchsorted(rows, self.starts).tolist()
        return Places(self.files, starts, self.numbers[rows])

    def error(self, place: int, reason: str) -> DataError:
        file = self.files[bisect_right(self.starts, place) - 1]
        return DataError(f"{file}, row {self.numbers[place]}: {reason}")


class Where(Protocol):
    """The positions of images: `Files`, `Ranges`, or row groups of Parquet files."""

    def only(self, rows: Ints) -> Self: ...


@dataclass(frozen=True)
class Rows:
    """The images of all splits of a dataset."""

    what: str
    """What was found, as in "2 tar files"."""
    names: PathList
    """Names of the images, whose hash decides their splits."""
    where: Where
    labels: Labels | Cells
    """Labels if the format defines their meaning, else cells."""
    words: Words
    places: Places | None = None
    masks: PathList | None = None
    """Path of each image's mask, below the folder of `where`."""
    is_list: bool = False
    """Whether a list names the images, so that files may be missing."""

    def __len__(self) -> int:
        return len(self.names)

    def only(self, rows: Ints, labels: Labels) -> Rows:
        """Returns these ascending rows, with their share of `labels`."""
        where: Where = self.where.only(rows)
        if isinstance(self.where, Files) and self.names is self.where.files:
            assert isinstance(where, Files)
            names = where.files  # with the folders of splits, if there are several
        else:
            names = self.names.only(rows)
        places, masks = self.places, self.masks
        return replace(
            self,
            names=names,
            where=where,
            labels=labels.only(rows),
            words=Words.none(len(rows)),
            places=None if places is None else places.only(rows),
            masks=None if masks is None else masks.only(rows),
        )

    @property
    def jpegs(self) -> int | None:
        """Returns the number of JPEGs, by their names; None if names do not tell."""
        if isinstance(self.where, Files):
            return self.where.files.jpegs
        return self.names.jpegs if isinstance(self.where, Ranges) else None

    def error(self, place: int, reason: str) -> DataError:
        """Returns an error that names the image `place`."""
        if self.places is not None:
            return self.places.error(place, reason)
        folder = self.where.folder if isinstance(self.where, (Files, Ranges)) else ""
        return DataError(f"{folder}/{printable(self.names[place])}: {reason}")
