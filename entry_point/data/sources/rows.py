"""What a reader says of a dataset: a row for each image. It decides nothing.

`labels` decides what the cells mean, `splits` which images are `train`, `val` and `test`, and
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
"""Of the formats that are read, see decode/pillow.py."""
LABEL_NAMES = ("label", "labels", "class", "cls", "target", "class_id")
"""The usual names of columns of labels, and of their keys in JSON: the first that is there is
read."""
SPLIT = "split"
"""The usual name of the column of splits."""


@dataclass(frozen=True)
class PathList:
    """Paths as one buffer: a million Python strings would take 100 MB and be copied by forks."""

    text: NDArray[np.uint8]
    """UTF-8, with a NUL after each path; file names may hold other bytes."""
    ends: Ints
    """Where each path ends."""

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
        """How many are JPEGs by their names."""
        text = self.text.tobytes().lower()
        return sum(text.count(f"{suffix}\0".encode()) for suffix in JPEG_SUFFIXES)


class Names(Protocol):
    """Texts by number: a PathList, or what reads them from a file."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, row: int, /) -> str: ...


class Range(NamedTuple):
    """Where an image is."""

    file: str
    offset: int = 0
    length: int | None = None
    """In bytes; None for a whole file."""
    state: FileState | None = None
    """Of the file when it was listed; None if it may have changed since."""


@dataclass(frozen=True)
class Files:
    """Images that are whole files."""

    folder: str
    """What all files are below; "" for nothing."""
    files: PathList
    """Of each image, from its top on."""
    tops: Sequence[str] = ("",)
    """Folders of splits below `folder`."""
    top_of: NDArray[np.integer] | None = None
    """The number of each image's top; None if there is only one."""

    def only(self, rows: Ints) -> Files:
        """Returns those of these ascending rows: below the top that all have, else below
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
    """Below `folder`."""
    file_of: NDArray[np.integer]
    """The number of each image's file."""
    offsets: Ints
    """Of an image's first byte in its file."""
    lengths: Ints
    """Of each image in bytes."""
    states: Sequence[FileState] = ()
    """Of the files when they were listed; none if nothing is read again that may have changed."""

    def only(self, rows: Ints) -> Ranges:
        """Returns those of these ascending rows."""
        offsets, lengths = self.offsets[rows], self.lengths[rows]
        return replace(self, file_of=self.file_of[rows], offsets=offsets, lengths=lengths)

    def of(self, index: int) -> Range:
        number = int(self.file_of[index])
        state = self.states[number] if self.states else None
        start, length = int(self.offsets[index]), int(self.lengths[index])
        return Range(f"{self.folder}/{self.files[number]}", start, length, state)


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
        """Returns the labels of images that have none, or whose labels nobody needs."""
        return cls("class", [], np.full(images, -1))

    def only(self, rows: Ints) -> Labels:
        return replace(self, values=self.values[rows])


@dataclass(frozen=True)
class Cells:
    """The labels of all images as they stand."""

    columns: Sequence[Any]
    """polars Series of text, or one of lists of text."""
    place: Path
    """The file or folder, for messages."""
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
class Places:
    """Where tables list the images: what a line about one names."""

    files: Sequence[Path]
    starts: Sequence[int]
    """The place of the first image of each file, ascending."""
    numbers: NDArray[np.integer]
    """The row of each image in its file."""

    def only(self, rows: Ints) -> Places:
        """Returns those of these ascending rows."""
        starts = np.searchsorted(rows, self.starts).tolist()
        return Places(self.files, starts, self.numbers[rows])

    def error(self, place: int, reason: str) -> DataError:
        file = self.files[bisect_right(self.starts, place) - 1]
        return DataError(f"{file}, row {self.numbers[place]}: {reason}")


class Where(Protocol):
    """Where the images of rows are: `Files`, `Ranges`, or row groups of Parquet files."""

    def only(self, rows: Ints) -> Self: ...


@dataclass(frozen=True)
class Rows:
    """The images of a dataset, of all splits."""

    what: str
    """What was found there, as in "2 tar files"."""
    names: PathList
    """By which a hash divides the images into splits."""
    where: Where
    labels: Labels | Cells
    """Labels where the dataset says by itself what they mean."""
    words: Words
    places: Places | None = None
    masks: PathList | None = None
    """The mask of each image, below the folder of `where`."""
    is_list: bool = False
    """Whether a list names the images, which may not be there."""

    def __len__(self) -> int:
        return len(self.names)

    def only(self, rows: Ints, labels: Labels) -> Rows:
        """Returns these ascending rows, with their labels of those of all."""
        where: Where = self.where.only(rows)
        if isinstance(self.where, Files) and self.names is self.where.files:
            assert isinstance(where, Files)
            names = where.files  # with the folders of splits, if they are of several
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
        """How many are JPEGs by their names; None if names do not tell."""
        if isinstance(self.where, Files):
            return self.where.files.jpegs
        return self.names.jpegs if isinstance(self.where, Ranges) else None

    def error(self, place: int, reason: str) -> DataError:
        """Returns an error that names the image at this place of the dataset."""
        if self.places is not None:
            return self.places.error(place, reason)
        folder = self.where.folder if isinstance(self.where, (Files, Ranges)) else ""
        return DataError(f"{folder}/{printable(self.names[place])}: {reason}")
