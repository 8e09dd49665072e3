"""Images in Parquet files (data=parquet), as Hugging Face's datasets have them.

One column holds the images, as bytes or structs with `bytes`; others hold the labels. Parquet
cannot read a single image, so consecutive row groups form shards, which are read whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from entry_point.config.config_errors import did_you_mean
from entry_point.config.data_config import DataConfig, TableConfig
from entry_point.data.errors import DataError
from entry_point.data.plan.samples import Ints
from entry_point.data.plan.stream_order import WINDOW_SHARDS
from entry_point.data.sources.dataset_description import CLASS_NAME, SPLITS, is_class_name
from entry_point.data.sources.file_bytes import opened
from entry_point.data.sources.folder import Tree
from entry_point.data.sources.labels import text_column
from entry_point.data.sources.rows import (
    LABEL_NAMES,
    SPLIT,
    Cells,
    Labels,
    PathList,
    Places,
    Rows,
    Words,
)
from entry_point.data.sources.splits import split_named, words_of_files
from entry_point.data.sources.stream import StreamSource
from entry_point.job.text import counted, printable

SHARD_BYTES = 64e6
"""Consecutive row groups of a file form a shard of about this many bytes of images."""
_SMALLEST_IMAGE = 32
"""Bytes; no image is smaller."""
_METADATA = b"huggingface"
"""Key in the schema's metadata under which the datasets package describes the columns."""

_reading = Lock()
"""Held while a shard is read, so that other threads wait for it instead of reading it again."""


class Shard(NamedTuple):
    """Consecutive row groups of a file."""

    file: Path
    first_row: int
    """Number of its first row in the file."""
    first: int
    end: int
    """The row groups are those from `first` to `end` - 1."""
    image_bytes: int
    """Mean size of the images in bytes."""
    changed: int
    """Modification time of the file in nanoseconds."""


class HeldRows(NamedTuple):
    """The images of a shard in memory."""

    content: Tensor
    offsets: Ints
    """The start of each image, and the end of the last."""


@dataclass(frozen=True)
class RowGroups:
    """The positions of images in row groups of Parquet files, in the order of the files."""

    folder: Path
    column: str
    """The column of the images."""
    shards: list[Shard]
    shard_of: NDArray[np.int32]
    rows: Ints
    """Number of each row in its shard."""

    def only(self, rows: Ints) -> RowGroups:
        """Returns the positions of these rows."""
        return replace(self, shard_of=self.shard_of[rows], rows=self.rows[rows])


class ParquetSource(StreamSource):
    """The images of Parquet files."""

    def __init__(self, rows: Rows) -> None:
        where, labels = rows.where, rows.labels
        assert isinstance(where, RowGroups) and isinstance(labels, Labels)
        self.folder, self.classes, self.kind = where.folder, labels.names, labels.kind
        self.split_shards = np.unique(where.shard_of).tolist()
        self.shard_files = [shard.file for shard in where.shards]
        self._shards, self._column = where.shards, where.column
        self.shard_of, self._rows = where.shard_of, where.rows
        dtype = torch.int64 if labels.kind == "class" else torch.float32
        self.labels = torch.from_numpy(labels.values).to(dtype)
        self._memory = {}
        self._recent: dict[int, HeldRows] = {}

    def listing(self) -> Iterable[bytes | memoryview]:
        """Yields the files, the beginnings of their shards, and the rows."""
        shards = (self._shards[number] for number in self.split_shards)
        places = [(str(shard.file.relative_to(self.folder)), shard.first_row) for shard in shards]
        yield repr(places).encode()
        yield np.searchsorted(self.split_shards, self.shard_of).data
        yield self._rows.data

    def key(self, index: int) -> str:
        shard = self._shards[int(self.shard_of[index])]
        return printable(f"{shard.file}, row {shard.first_row + int(self._rows[index])}")

    def name(self, index: int) -> str:
        """Returns the file's path, and the row's number."""
        shard = self._shards[int(self.shard_of[index])]
        file = shard.file.relative_to(self.folder).with_suffix("")
        return f"{file}/{shard.first_row + int(self._rows[index]):08d}"

    def status(self, index: int) -> tuple[int, int]:
        """Returns the mean size of images in the shard in bytes, and the file's modification
        time."""
        shard = self._shards[int(self.shard_of[index])]
        return shard.image_bytes, shard.changed

    def read(self, index: int) -> Tensor:
        held: HeldRows = self._held(index) or self._read_again(int(self.shard_of[index]))
        row = int(self._rows[index])
        image = held.content[held.offsets[row] : held.offsets[row + 1]]
        if not len(image):
            raise DataError("the row has no image")
        return image

    def _read_again(self, number: int) -> HeldRows:
        """Returns a shard that is not in memory. A process of `workers` keeps a window's shards
        itself.

        `read_image` does the retries, so that no thread waits for a disk while it holds the lock.
        """
        with _reading:
            if number not in self._recent:
                while len(self._recent) > WINDOW_SHARDS:
                    self._recent.pop(next(iter(self._recent)))
                self._recent[number] = self._read_shard(number)
            return self._recent[number]

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_recent": {}}

    def _read_shard(self, number: int) -> HeldRows:
        shard = self._shards[number]
        groups = range(shard.first, shard.end)
        if shard.file.stat().st_mtime_ns != shard.changed:
            raise DataError(f"{shard.file} was replaced while it was in use: start again")
        with _damage_named(shard.file), pq.ParquetFile(shard.file, pre_buffer=False) as file:
            name = _bytes_of(file.schema_arrow, self._column)
            column = file.read_row_groups(groups, columns=[name], use_threads=False)[self._column]
            if pa.types.is_struct(column.type):
                column = pa.chunked_array([chunk.field("bytes") for chunk in column.chunks])
            array = column.cast(pa.large_binary()).combine_chunks()
        _, offsets, content = array.buffers()
        bounds = np.frombuffer(offsets, np.int64)[array.offset :][: len(array) + 1]
        # A copy, as torch does not support read-only memory.
        writable = np.frombuffer(content or b"", np.uint8).copy()
        return HeldRows(torch.from_numpy(writable), bounds)


def list_parquet(tree: Tree, data: DataConfig, labeled: bool) -> Rows:
    """Returns the rows of a Parquet file, or of all files below a folder. Raises DataError.

    A word in a file's path may name the split; then files of no split are not read. If no path
    does, a column `split` may.
    """
    table = data.table
    folder, every = _files_of(tree)
    words, left_out = words_of_files(every, skip=labeled)
    files = [folder / name for name in words]
    schema = _read_schema(files[0])
    column, columns = _image_column(files[0], schema, table), list[str]()
    if labeled:
        columns = table.labels or [_label_column(files[0], schema)]
    shards, shard_of, rows, file_of = _listed(files, column, columns)
    if shards and max(shard.image_bytes for shard in shards) < _SMALLEST_IMAGE:
        _refuse_paths(shards[0], column)
    in_file = np.array([shard.first_row for shard in shards], np.int64)[shard_of] + rows
    of_file = [*words]
    names = PathList.of_names(
        f"{of_file[file]}:{row}"
        for file, row in zip(file_of.tolist(), in_file.tolist(), strict=True)
    )
    cells = _cells(files, columns) if labeled else Labels.unknown(len(rows))
    found = Words("the names of the Parquet files", [*words.values()], file_of, left_out)
    if labeled and not any(words.values()):
        found = _words_of_column(files) or found
    places = Places(files, np.searchsorted(file_of, np.arange(len(files))).tolist(), in_file)
    where = RowGroups(folder, column, shards, shard_of, rows)
    return Rows(counted(len(files), "Parquet file"), names, where, cells, found, places)


def _words_of_column(files: Sequence[Path]) -> Words | None:
    """Returns the words in the column `split`; None if a file lacks it, or no row names a split."""
    if not all(SPLIT in _read_schema(file).names for file in files):
        return None
    columns = (_read_columns(file, [SPLIT])[SPLIT].to_pylist() for file in files)
    cells = ("" if cell is None else str(cell) for column in columns for cell in column)
    found = [split_named(cell) or cell for cell in cells]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(found))}
    of = np.array([numbers[word] for word in found])
    return Words("the column 'split'", [*numbers], of) if {*numbers} & {*SPLITS} else None


def _refuse_paths(shard: Shard, column: str) -> None:
    """Raise DataError for a column with only paths: its bytes are null in all rows."""
    with _damage_named(shard.file), pq.ParquetFile(shard.file, pre_buffer=False) as file:
        if not pa.types.is_struct(file.schema_arrow.field(column).type):
            return
        rows = file.read_row_group(shard.first, columns=[column])[column].to_pylist()
    if rows and not any(row and row.get("bytes") for row in rows):
        raise DataError(
            f"{shard.file}: {column!r} has paths, not the images' bytes: write it again with them, "
            "by datasets.table.embed_table_storage: ds.with_format('arrow').map("
            "embed_table_storage, batched=True).to_parquet(FILE)"
        )


def has_images(file: Path, column: str | None) -> bool:
    """Returns whether `column`, or any column, holds images. Raises DataError."""
    schema = _read_schema(file)
    return any(_holds_images(field) for field in schema if column in (None, field.name))


def _files_of(tree: Tree) -> tuple[Path, list[str]]:
    """Returns a folder, and the paths of Parquet files below it."""
    root = tree.root
    if not root.is_dir():
        return root.parent, [root.name]
    names = [file for file in tree.files() if file.lower().endswith(".parquet")]
    if not names:
        raise DataError(f"data.root={root} holds no Parquet file")
    return root, names


def _listed(
    files: list[Path], column: str, labels: list[str]
) -> tuple[list[Shard], NDArray[np.int32], Ints, Ints]:
    """Returns the shards, and for each row its shard, its number there, and its file."""
    shards, counts, file_of = list[Shard](), list[int](), list[int]()
    for number, file in enumerate(files):
        for shard, count in _shards(file, column, labels):
            shards.append(shard)
            counts.append(count)
            file_of.append(number)
    shard_of = np.repeat(np.arange(len(shards), dtype=np.int32), counts)
    rows = np.concatenate([np.arange(count) for count in counts])
    return shards, shard_of, rows, np.repeat(file_of, counts)


@contextmanager
def _damage_named(file: Path) -> Iterator[None]:
    """Turn pyarrow's errors for a damaged file into DataError."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:  # an error of the disk
            raise OSError(error.errno, os.strerror(error.errno), str(file)) from error
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{file} is damaged ({reason}): copy it again") from error


def _read_schema(file: Path) -> pa.Schema:
    with opened(file):  # refuses a pipe, on which pyarrow would wait
        pass
    with _damage_named(file):
        return pq.read_schema(file)


def _shards(file: Path, column: str, labels: list[str]) -> list[tuple[Shard, int]]:
    """Returns the shards of a file, and the number of rows of each."""
    shards = list[tuple[Shard, int]]()
    with _damage_named(file), pq.ParquetFile(file, pre_buffer=False) as opened:
        for name in (column, *labels):
            if name not in (found := opened.schema_arrow.names):
                has = ", ".join(map(printable, found[:20]))
                raise DataError(
                    f"{file} has no column {name!r}{did_you_mean(name, found)}; it has {has}"
                )
        row = first = filled = count = 0
        path = _bytes_of(opened.schema_arrow, column)
        for number in range(opened.num_row_groups):
            group = opened.metadata.row_group(number)
            filled += next(
                leaf.total_compressed_size
                for leaf in map(group.column, range(group.num_columns))
                if leaf.path_in_schema == path
            )
            count += group.num_rows
            if filled >= SHARD_BYTES or number == opened.num_row_groups - 1:
                mean = filled // max(1, count)
                shard = Shard(file, row, first, number + 1, mean, file.stat().st_mtime_ns)
                shards.append((shard, count))
                row, first, filled, count = row + count, number + 1, 0, 0
    return shards


# Columns


def _bytes_of(schema: pa.Schema, column: str) -> str:
    """Returns the path of the column's bytes."""
    return f"{column}.bytes" if pa.types.is_struct(schema.field(column).type) else column


def _holds_images(field: pa.Field) -> bool:
    if pa.types.is_struct(field.type):
        return field.type.get_field_index("bytes") >= 0
    return pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)


def _image_column(file: Path, schema: pa.Schema, table: TableConfig) -> str:
    found = [field.name for field in schema if _holds_images(field)]
    if table.path is not None:
        if table.path in schema.names and table.path not in found:
            is_of = schema.field(table.path).type
            raise DataError(f"{file}: the column {table.path!r} is of type {is_of}: must be bytes")
        return table.path
    if len(found) != 1:
        which = f"several columns of images, {', '.join(found)}" if found else "no column of images"
        raise DataError(f"{file} has {printable(which)}: set data.table.path=COLUMN")
    return found[0]


def _label_column(file: Path, schema: pa.Schema) -> str:
    for name in LABEL_NAMES:
        if name in schema.names:
            return name
    has = ", ".join(map(printable, schema.names[:20]))
    raise DataError(
        f"{file} has no column of labels: set data.table.labels=[COLUMN], which is usually called "
        f"{', '.join(LABEL_NAMES)}; it has {has}"
    )


# Labels


def _cells(files: list[Path], columns: list[str]) -> Cells:
    """Returns the label cells of all rows; numbers of classes are replaced by names in the
    schema."""
    tables, order = list[pa.Table](), list[str]()
    for file in files:
        found = _read_columns(file, columns)
        names = _class_names(file, found.schema, columns[0])
        if names:
            order += [name for name in names if name not in order]
            found = found.set_column(0, columns[0], _named(file, found[columns[0]], names))
        tables.append(found)
        if found.schema.types != tables[0].schema.types:
            raise DataError(f"{file}: its labels are of another type than those of {files[0]}")

    whole = pl.from_arrow(pa.concat_tables(tables).select(columns))
    assert isinstance(whole, pl.DataFrame)
    return Cells([text_column(files[0], whole[name]) for name in columns], files[0], order)


def _named(file: Path, column: pa.ChunkedArray, names: list[str]) -> pa.ChunkedArray:
    """Replaces numbers of classes by their names. Raises DataError for a number without a name."""
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    array = column.combine_chunks()
    numbers = array.flatten() if is_list else array
    if not pa.types.is_integer(numbers.type):
        return column
    wrong = pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, len(names)))
    if pc.any(wrong).as_py():
        place = pc.index(wrong, True).as_py()
        label = numbers[place].as_py()
        if is_list:
            place = pc.list_parent_indices(array)[place].as_py()
        wrong_label = f"{file}, row {place}: the label {label!r} is not a class of the schema"
        raise DataError(f"{wrong_label}: correct it; move a test set without labels elsewhere")
    texts = pc.take(pa.array(names, pa.string()), numbers)
    if not is_list:
        return pa.chunked_array([texts])
    lists = pa.LargeListArray if pa.types.is_large_list(column.type) else pa.ListArray
    return pa.chunked_array([lists.from_arrays(array.offsets, texts, mask=array.is_null())])


def _read_columns(file: Path, columns: list[str]) -> pa.Table:
    with _damage_named(file):
        return pq.read_table(file, columns=columns, partitioning=None)


def _class_names(file: Path, schema: pa.Schema, column: str) -> list[str]:
    """Returns the names of classes in the schema's metadata; an empty list if it has none."""
    try:
        feature = json.loads((schema.metadata or {})[_METADATA])["info"]["features"][column]
        while "names" not in feature:  # the description of a list contains that of its items
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        names = [*map(str, feature["names"])]
    except (LookupError, ValueError, TypeError):
        return []
    for name in names:
        if not is_class_name(name):
            raise DataError(f"{file}: the class {name!r} in the schema's metadata: {CLASS_NAME}")
    return names
