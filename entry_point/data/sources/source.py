"""The interface of a source of encoded images, reading a batch from it, and sources of files."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entry_point.config.config_errors import ConfigError
from entry_point.config.resolve import full_name
from entry_point.data.errors import DataError, log_once
from entry_point.data.plan.crops import Geometry
from entry_point.data.plan.samples import Ints
from entry_point.data.retries import with_retries
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.rows import (
    Files,
    Labels,
    Names,
    PathList,
    Places,
    Ranges,
    SourceKind,
)
from entry_point.data.sources.side_index_store import (
    FOLDER_INDEX,
    OLD_FOLDER_INDEX,
    SideIndexStore,
)
from entry_point.job.text import printable

LONGEST_RUN = 100
"""Most consecutive damaged images; a job that meets more stops."""


@dataclass(frozen=True)
class UprightSizes:
    """Sizes in pixels of all images of a source, after their orientation is applied."""

    heights: NDArray[np.int32]
    widths: NDArray[np.int32]

    def of(self, indices: Ints) -> tuple[Ints, Ints]:
        """Returns the heights and widths of these images."""
        return self.heights[indices].astype(np.int64), self.widths[indices].astype(np.int64)


class Source:
    """The encoded images of one split, numbered from 0; an image always has the same number.

    The base of all sources, also of your own. Required are `classes`, `labels`, `read` and `key`;
    all others have defaults.
    """

    classes: list[str]
    """Names of the model's outputs: the classes, the labels, or the target columns."""
    kind: SourceKind = "class"
    """The labels of a sample: one `class`, any number of `labels`, `numbers`, or `targets`."""
    labels: Tensor
    """For kind `class`: int32 or int64 (number of images,), positions in `classes`. For `labels`
    and `numbers`: float32 (number of images, number of classes), 1 for each of an image's labels
    and 0 for the others, or the numbers. For `targets`: of any content, one per image."""
    sizes: UprightSizes | None = None
    """The sizes of the images, or None if they are unknown before the images are read."""
    index_store: SideIndexStore | None = None
    """The store of side indexes that decoding makes, or that were made beforehand; or None."""

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> Tensor:
        """Returns the encoded image, uint8, shape (bytes,). Raises OSError or DataError.

        Called by several threads at once, or by forked processes; see `read_image`.
        """
        raise NotImplementedError

    def key(self, index: int) -> str:
        """Returns a printable name by which users find the image. It is the same in every run,
        except for the dataset's folder at its beginning, see `fingerprint`."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """Returns the image's name in the dataset, which may hold any bytes of a file name."""
        return self.key(index)

    def place(self, index: int) -> str:
        """Returns the image's position in a list, as in "row 4: ", with which messages begin."""
        del index
        return ""

    def in_reading_order(self, indices: Ints) -> Ints:
        """Returns these images in the order in which they are read fastest."""
        return indices

    def status(self, index: int) -> tuple[int, int]:
        """Returns the size in bytes, and the modification time in nanoseconds; 0 if unreadable or
        unknown.

        Raises ReadError.
        """
        del index
        return 0, 0

    def indexes(self, indices: Ints) -> list[Tensor] | None:
        """See Encoded.indexes."""
        del indices
        return None

    def keep_indexes(self, indices: Ints, indexes: Sequence[Tensor]) -> None:
        """Store the side indexes, perhaps empty, that decoding these images made."""

    def targets(self, indices: Ints, geometry: Geometry) -> Tensor:
        """For kind `targets`: returns the targets of N samples, (N, ...).

        `indices` has the image of each sample. In evaluation (not `geometry.training`), targets may
        be in the pixels of the image. Called where batches are made, in threads or processes.
        Raises OSError or DataError, which stop the job.
        """
        raise NotImplementedError

    def renumber(self, classes: Sequence[str]) -> None:
        """For kind `targets`: make `targets` hold positions in `classes`, the model's.

        By default, raises DataError unless they do already.
        """
        if list(classes) != list(self.classes):
            wanted = printable(", ".join(classes[:5]))
            raise DataError(
                f"the dataset must have the classes of the model in their order: {wanted}"
            )

    def listing(self) -> Iterable[bytes | memoryview]:
        """Returns bytes that identify the images and their order, but not the dataset's folder."""
        return joined(map(self.key, range(len(self))))


def fingerprint(source: Source) -> str:
    """Returns the number of images, and a checksum of their names, their order and their labels.

    It does not depend on the dataset's folder, nor on the content of the images.
    """
    checksum = 0
    for part in source.listing():
        checksum = zlib.crc32(part, checksum)
    if source.kind != "targets":
        checksum = zlib.crc32(np.ascontiguousarray(source.labels.numpy()).data, checksum)
    return f"{len(source)} (#{checksum:08x})"


def joined(names: Iterable[str]) -> Iterable[bytes]:
    """Yields names without their common beginning, such as the dataset's folder."""
    names = list(names)
    start = len(os.path.commonprefix(names))  # noqa: RUF071 - characters, not folders
    yield "\0".join(name[start:] for name in names).encode(errors="backslashreplace")


def read_image(source: Source, index: int) -> Tensor:
    """Returns the encoded image, see `Source.read`.

    Raises OSError or DataError for damage, ReadError if the disk fails, see `with_retries`, and
    ConfigError if your own source returns anything else.
    """
    image = with_retries(source.read, index, name=source.key)
    if not isinstance(image, Tensor) or image.dtype != torch.uint8 or image.dim() != 1:
        found = type(image).__name__
        if isinstance(image, Tensor):
            found = f"a tensor {tuple(image.shape)} of {image.dtype}"
        message = "read() must return the bytes of an image's file, uint8 (bytes,), as "
        message += f"torch.frombuffer(bytearray(BYTES), dtype=torch.uint8) does, not {found}"
        raise ConfigError("data.format", full_name(source), message)
    return image


def read_labels(source: Source, indices: Ints, geometry: Geometry) -> Tensor:
    """Returns the labels of N samples, see Batch; `indices` has the image of each. Raises
    ReadError."""
    if source.kind == "targets":
        return with_retries(source.targets, indices, geometry, name=lambda *_: "targets of a batch")
    labels = source.labels[indices]
    return labels.long() if source.kind == "class" else labels.float()


@dataclass(frozen=True)
class Encoded:
    """N images of a batch."""

    files: list[Tensor]
    """uint8 (bytes,); empty for images that cannot be read."""
    indexes: list[Tensor] | None = None
    """The side index of each image, perhaps empty; None if no image has one."""
    sizes: tuple[Ints, Ints] | None = None
    """Upright heights and widths in pixels, int64 (N,); None if the source does not know them."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """Reasons for images that cannot be read, by position."""
    keep_indexes: Callable[[Sequence[Tensor]], None] | None = None
    """Stores the side index, perhaps empty, that decoding makes of each image; None if the source
    stores none."""

    def __len__(self) -> int:
        return len(self.files)


def read_images(source: Source, indices: Ints, *, with_indexes: bool = True) -> Encoded:
    """Returns the images with these numbers, and the source's facts on them. Raises ReadError."""
    files, unreadable = list[Tensor](), dict[int, str]()
    for i, index in enumerate(indices.tolist()):
        try:
            files.append(read_image(source, index))
        except (OSError, DataError) as error:
            files.append(torch.empty(0, dtype=torch.uint8))
            unreadable[i] = getattr(error, "strerror", None) or str(error)
    sizes, store = source.sizes, source.index_store if with_indexes else None
    return Encoded(
        files,
        source.indexes(indices) if with_indexes else None,
        None if sizes is None else sizes.of(indices),
        unreadable,
        partial(source.keep_indexes, indices) if store is not None and store.grows else None,
    )


class RangeSource(Source):
    """Images that are ranges of files, or whole files."""

    def __init__(
        self, where: Files | Ranges, names: Names, labels: Labels, places: Places | None = None
    ) -> None:
        """`names` are those of the images; `places`, their positions in the list, if it is one."""
        self.folder, self.classes, self.kind = where.folder, labels.names, labels.kind
        dtype = torch.int64 if labels.kind == "class" else torch.float32
        self.labels = torch.as_tensor(labels.values, dtype=dtype)
        self._where, self._names, self._places = where, names, places

    def name(self, index: int) -> str:
        return self._names[index]

    def path(self, index: int) -> str:
        """Returns the path of the image's file, followed by its name in the file, if it has one."""
        file, _, length, _ = self._where.of(index)
        return file if length is None else f"{self.folder}/{self._names[index]}"

    def key(self, index: int) -> str:
        return printable(self.path(index))

    def place(self, index: int) -> str:
        return "" if self._places is None else f"row {self._places.numbers[index]}: "

    def listing(self) -> Iterable[bytes | memoryview]:
        return joined(self._names)

    def read(self, index: int) -> Tensor:
        return read_bytes(*self._where.of(index))

    def status(self, index: int) -> tuple[int, int]:
        file, _, length, state = self._where.of(index)
        if length is not None and state is not None:
            return length, state.changed
        try:
            status = with_retries(os.stat, file)
        except OSError:
            return 0, 0
        return status.st_size if length is None else length, status.st_mtime_ns

    def use_side_indexes(
        self, index_root: Path | None, root: str | Path | None = None, command: str = ""
    ) -> None:
        """Use the side indexes of the files below `root`, by default below `folder`; if there are
        none, decoding makes them.

        Raises DataError, which names `command` to make them, if `index_root` holds none.
        """
        root = root or self.folder
        folder = index_root or Path(root)
        file, old = folder / FOLDER_INDEX, folder / OLD_FOLDER_INDEX
        if file.exists():
            self._use(SideIndexStore(file, root, grows=False))
            return
        before = f"; {old.name} is of version 1 and not read" if old.exists() else ""
        if index_root is not None:
            raise DataError(
                f"data.index_root={index_root}: holds no {file.name}{before}; make it with "
                f"`{command}`"
            )
        if before:
            log_once(
                logging.WARNING,
                f"{folder} holds no {file.name}{before}: decoding makes the side indexes; remove "
                f"{old.name}, and make them beforehand with `{command}`",
            )
        self._use(SideIndexStore.of_host(root))

    def _use(self, store: SideIndexStore) -> None:
        self.index_store, self._index_keys = store, np.zeros(len(self), np.int64)
        if not store.grows:
            store.warn_of_missing(self._keys_of(np.arange(len(self))))

    def _keys_of(self, indices: Ints) -> list[int]:
        """Returns the images' keys, computed once: that takes as long as finding an index."""
        store, keys = self.index_store, self._index_keys
        if store is not None:
            for i in indices[keys[indices] == 0].tolist():
                keys[i] = store.key(self.path(i))
        return keys[indices].tolist()

    def indexes(self, indices: Ints) -> list[Tensor] | None:
        store = self.index_store
        return None if store is None else store.find(self._keys_of(indices))

    def keep_indexes(self, indices: Ints, indexes: Sequence[Tensor]) -> None:
        if self.index_store is not None:
            self.index_store.keep(self._keys_of(indices), indexes)


class FileSource(RangeSource):
    """A source of these files, in this order; also the base of your own."""

    def __init__(
        self,
        files: Sequence[str | Path],
        labels: Any,
        classes: list[str],
        kind: SourceKind = "class",
        folder: str = "",
    ) -> None:
        """`labels` has, for kind `class`, a position in `classes` per file; for kind `targets`, any
        value per file; otherwise rows as in `Source`. All files are below `folder`."""
        names = PathList.of_names(map(str, files))
        super().__init__(Files(folder, names), names, Labels(kind, classes, labels))
        if len(files) not in (0, len(self.labels)):  # a subclass may have its own way to read
            raise DataError(f"{len(files)} files have {len(self.labels)} labels: one is for each")

    def file(self, index: int) -> str:
        return self.path(index)

    def listing(self) -> Iterable[bytes | memoryview]:
        if len(self._names):
            return super().listing()
        return Source.listing(self)  # without files, by `name` of the subclass
