"""What a source of encoded images is, what a batch reads from it, and image files as a source."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entry_point.data.errors import DataError
from entry_point.data.patience import patiently
from entry_point.data.plan.crops import Geometry
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.dataset_description import Kind
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.index_cache import IndexCache
from entry_point.data.sources.index_file import FOLDER_INDEX, SideIndexes, find_side_indexes
from entry_point.job.program import printable

SourceKind = Kind | Literal["targets"]
KINDS = (*get_args(Kind), "targets")
LONGEST_RUN = 100
"""Damaged images that may follow each other; a job that meets more stops."""
JPEG_SUFFIXES = (".jpg", ".jpeg", ".jfif")


@dataclass(frozen=True)
class UprightSizes:
    """Sizes in pixels of all images of a source, after their orientation is applied."""

    heights: NDArray[np.int32]
    widths: NDArray[np.int32]

    def of(self, indices: Ints) -> tuple[Ints, Ints]:
        """Heights and widths of these images."""
        return self.heights[indices].astype(np.int64), self.widths[indices].astype(np.int64)


class Source:
    """The encoded images of one split, numbered from 0; an image always has the same number.

    The base of every source, also of your own: it needs `classes`, `labels`, `read` and `key`; what
    else is here has a default.
    """

    classes: list[str]
    """Names of the model's outputs: the classes, the labels, or the target columns."""
    kind: SourceKind = "class"
    """What a sample has: one `class`, any number of `labels`, `numbers`, or `targets`."""
    labels: Tensor
    """Of kind `class`: int32 or int64 (number of images,), positions in `classes`. Else float32
    (number of images, number of classes): 1 for each of an image's labels and 0 for the others; or
    the numbers. Of kind `targets`, only their number counts."""
    sizes: UprightSizes | None = None
    """The images' sizes, or None if they are not known without reading the images."""
    index_cache: IndexCache | None = None
    """Where the side indexes are that decoding makes; None if it makes none."""
    index_file: Path | None = None
    """The file that holds the side indexes of `indexes`, made beforehand."""

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> Tensor:
        """Returns the encoded image, uint8, shape (bytes,). Raises OSError or DataError.

        Those who need it call `read_image`.
        """
        raise NotImplementedError

    def key(self, index: int) -> str:
        """Returns a printable name by which a person finds the image: below the dataset's folder
        the same in every run, see `fingerprint`."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """Returns the image's name below the dataset, which may hold any bytes of a file name."""
        return self.key(index)

    def place(self, index: int) -> str:
        """Returns where the dataset lists the image, as in "row 4: ", to begin a line about it."""
        del index
        return ""

    def in_reading_order(self, indices: Ints) -> Ints:
        """These images in the order in which they are read fast."""
        return indices

    def status(self, index: int) -> tuple[int, int]:
        """Size in bytes, and modification time in nanoseconds; 0 of what cannot be read, or where
        nobody knows.

        Raises ReadError.
        """
        del index
        return 0, 0

    def indexes(self, indices: Ints) -> list[Tensor] | None:
        """See Encoded.indexes."""
        del indices
        return None

    def keep_indexes(self, indices: Ints, indexes: Sequence[Tensor]) -> None:
        """Store the side indexes that decoding these images made; empty for none."""

    def use_side_indexes(self, index_root: Path | None, root: Path | None, command: str) -> None:
        """Use side indexes that lie beside the images, if this kind of source may have some."""

    def targets(self, indices: Ints, geometry: Geometry) -> Tensor:
        """Of kind `targets`: what a task learns from N samples, (N, ...).

        `indices` has the image of each. Unless `geometry.training`, the answers are compared with
        them: they may then be in the pixels of the image. Called where batches are made, in threads
        or processes. Raises OSError or DataError, which stop the job.
        """
        raise NotImplementedError

    def renumber(self, classes: Sequence[str]) -> None:
        """Of kind `targets`: have `targets` hold positions in `classes`, the model's.

        Raises DataError unless they do already.
        """
        if list(classes) != list(self.classes):
            wanted = printable(", ".join(classes[:5]))
            raise DataError(
                f"the dataset must have the classes of the model in their order: {wanted}"
            )

    def listing(self) -> Iterable[bytes | memoryview]:
        """Returns what names the images, in their order, and does not change with the dataset's
        place."""
        return joined(map(self.key, range(len(self))))


def fingerprint(source: Source) -> str:
    """Returns the number of images, and a checksum of their names, their order and their labels.

    It is the same wherever the dataset lies. The content of the images does not count.
    """
    checksum = 0
    for part in source.listing():
        checksum = zlib.crc32(part, checksum)
    if source.kind != "targets":
        checksum = zlib.crc32(np.ascontiguousarray(source.labels.numpy()).data, checksum)
    return f"{len(source)} (#{checksum:08x})"


def joined(names: Iterable[str]) -> Iterable[bytes]:
    """Yields names without what all begin with, such as the dataset's folder."""
    names = list(names)
    start = len(os.path.commonprefix(names))  # noqa: RUF071 - characters, not folders
    yield "\0".join(name[start:] for name in names).encode(errors="backslashreplace")


def read_image(source: Source, index: int) -> Tensor:
    """Returns the encoded image, see `Source.read`.

    Raises OSError or DataError for damage, and ReadError if its disk fails, see `patiently`.
    """
    return patiently(source.read, index, name=source.key)


def read_labels(source: Source, indices: Ints, geometry: Geometry) -> Tensor:
    """Returns the labels of N samples, see Batch. `indices` has the image of each. Raises
    ReadError."""
    if source.kind == "targets":
        return patiently(source.targets, indices, geometry, name=lambda *_: "targets of a batch")
    labels = source.labels[indices]
    return labels.long() if source.kind == "class" else labels.float()


@dataclass(frozen=True)
class Encoded:
    """N images of a batch."""

    files: list[Tensor]
    """uint8 (bytes,); empty where an image cannot be read."""
    indexes: list[Tensor] | None = None
    """The side index of each image, empty for one without; None if none has one."""
    sizes: tuple[Ints, Ints] | None = None
    """Upright heights and widths in pixels, int64 (N,); None if the source does not know them."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """Why an image cannot be read, by its position."""
    keep_indexes: Callable[[Sequence[Tensor]], None] | None = None
    """Stores the side index of each image that decoding makes, empty for none; None if the source
    keeps none."""

    def __len__(self) -> int:
        return len(self.files)


def read_images(source: Source, indices: Ints, *, with_indexes: bool = True) -> Encoded:
    """Returns the images with these numbers, and what the source knows of them. Raises
    ReadError."""
    files, unreadable = list[Tensor](), dict[int, str]()
    for i, index in enumerate(indices.tolist()):
        try:
            files.append(read_image(source, index))
        except (OSError, DataError) as error:
            files.append(torch.empty(0, dtype=torch.uint8))
            unreadable[i] = getattr(error, "strerror", None) or str(error)
    sizes, keeps = source.sizes, with_indexes and source.index_cache is not None
    return Encoded(
        files,
        source.indexes(indices) if with_indexes else None,
        None if sizes is None else sizes.of(indices),
        unreadable,
        partial(source.keep_indexes, indices) if keeps else None,
    )


@dataclass(frozen=True)
class PathList:
    """Paths as one buffer: a million Python strings would take 100 MB and be copied by forks."""

    text: NDArray[np.uint8]
    """UTF-8, with a NUL after each path; file names may hold other bytes."""
    ends: Ints
    """Where each path ends."""

    @classmethod
    def of_names(cls, names: Iterable[str]) -> PathList:
        """From paths; file names may hold any bytes."""
        return cls.of("".join(f"{name}\0" for name in names).encode(errors="surrogateescape"))

    @classmethod
    def of(cls, encoded: bytes) -> PathList:
        """From encoded paths, each with a NUL after it."""
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


class FileSource(Source):
    """A source of these files, in this order; also the base of your own."""

    _side_indexes: SideIndexes | None = None

    def __init__(
        self,
        files: Sequence[str | Path] | PathList,
        labels: Any,
        classes: list[str],
        kind: SourceKind = "class",
        folder: str = "",
    ) -> None:
        """`labels` of kind `class`: a position in `classes` per file; else rows as in `Source`; of
        kind `targets`, anything per file. `folder` is what all files are below."""
        self._files, self.classes, self.kind, self.folder = files, classes, kind, folder
        dtype = torch.int64 if kind == "class" else torch.float32
        self.labels = torch.as_tensor(labels, dtype=dtype)
        if len(files) not in (0, len(self.labels)):  # none: a subclass has its own
            raise DataError(f"{len(files)} files have {len(self.labels)} labels: one is for each")

    def file(self, index: int) -> str:
        name = str(self._files[index])
        return f"{self.folder}/{name}" if self.folder else name

    def name(self, index: int) -> str:
        return str(self._files[index])

    def listing(self) -> Iterable[bytes | memoryview]:
        if len(self._files):
            return joined(map(str, self._files))
        return super().listing()  # without files, a subclass has its own

    def read(self, index: int) -> Tensor:
        return read_bytes(self.file(index))

    def key(self, index: int) -> str:
        return printable(self.file(index))

    def status(self, index: int) -> tuple[int, int]:
        try:
            status = patiently(os.stat, self.file(index))
        except OSError:
            return 0, 0
        return status.st_size, status.st_mtime_ns

    def use_side_indexes(
        self, index_root: Path | None, root: str | Path | None = None, command: str = ""
    ) -> None:
        """Use the side indexes of the files below `root`, by default below `folder`; if it holds
        none, decoding makes them.

        Raises DataError if `index_root` is given and holds none: `command` makes them.
        """
        root = root or self.folder
        file = (index_root or Path(root)) / FOLDER_INDEX
        if file.exists():
            paths = [self.file(i).removeprefix(f"{root}/") for i in range(len(self))]
            self.index_file, self._side_indexes = file, find_side_indexes(file, paths)
        elif index_root is None:
            self.index_cache = IndexCache(Path(root))
        else:
            raise DataError(
                f"data.index_root={index_root}: holds no {FOLDER_INDEX}; make it with `{command}`"
            )

    def indexes(self, indices: Ints) -> list[Tensor] | None:
        if self.index_cache is not None:
            return self.index_cache.find([self.file(i) for i in indices.tolist()])
        return None if self._side_indexes is None else self._side_indexes.of(indices)

    def keep_indexes(self, indices: Ints, indexes: Sequence[Tensor]) -> None:
        if self.index_cache is not None:
            self.index_cache.keep([self.file(i) for i in indices.tolist()], indexes)
