"""The index of many images in one file: columns of numbers, a key and a side index for each image.

It is a safetensors file, which `safetensors.numpy.load_file` reads:

| Tensor | Content |
|---|---|
| `side_index` | the side indexes, one after the other; about 1 % of the images' bytes |
| `side_offset`, `side_length` | where an image's is in the file; length 0 for an image without |
| `key`, `key_end` | the keys as UTF-8, one after the other, and where each ends |
| others | a row for each image, or the values of all images one after the other |

The side indexes come first, so that they are written as they are made. All that follows, the table,
is small enough to be read at the start of each process.
"""

from __future__ import annotations

import json
import logging
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entry_point.data.errors import DataError
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.file_bytes import crc32, map_file, read_bytes
from entry_point.job.program import ReadError

FOLDER_INDEX = "jpeg-index.safetensors"
"""The side indexes of a folder of images that stays as it is: its keys are the paths below it."""
HEADER_BYTES = 4096
"""The header has a fixed size, as it is written last."""
SIDE_OFFSET, SIDE_LENGTH = "side_offset", "side_length"
_SIDE, _KEY, _KEY_END = "side_index", "key", "key_end"
_TYPES = {
    **{"I64": np.int64, "I32": np.int32, "U32": np.uint32, "F32": np.float32},
    **{"I8": np.int8, "U8": np.uint8},
}
_NAMES = {np.dtype(number): name for name, number in _TYPES.items()}

_CONSEQUENCE = (
    "decode without a side index, slower and to the same pixels; `make dataset "
    'ARGS="source=FOLDER output_format=index"` makes the indexes again'
)


log = logging.getLogger(__name__)


class IndexWriter:
    """Writes an index file chunk by chunk; the table is in memory until `finish`."""

    def __init__(self, file: BinaryIO, types: Mapping[str, Any]) -> None:
        """`types` are those of the columns besides keys and side indexes."""
        self._file, self._types = file, types
        self._chunks: list[dict[str, NDArray[Any]]] = []
        self.side_bytes = self.side_crc32 = 0
        file.write(bytes(HEADER_BYTES))

    def add(
        self, columns: Mapping[str, Any], keys: Sequence[bytes], side_indexes: Sequence[bytes]
    ) -> None:
        """Append some images; their side indexes are empty for none. Raises OSError."""
        chunk = {name: np.asarray(columns[name], dtype) for name, dtype in self._types.items()}
        chunk[SIDE_LENGTH] = np.array([*map(len, side_indexes)], np.int32)
        chunk[_KEY_END] = np.array([*map(len, keys)], np.int64)
        chunk[_KEY] = np.frombuffer(b"".join(keys), np.uint8)
        self._chunks.append(chunk)
        for side_index in side_indexes:
            self._write_side(side_index)

    def finish(self) -> int:
        """Write the table and the header; returns the `table_crc32`. Raises OSError."""
        if not self._chunks:
            self.add(dict.fromkeys(self._types, ()), [], [])
        names = self._chunks[0]
        table = {name: np.concatenate([chunk[name] for chunk in self._chunks]) for name in names}
        lengths = table[SIDE_LENGTH]
        table[SIDE_OFFSET] = HEADER_BYTES + np.cumsum(lengths, dtype=np.int64) - lengths
        table[_KEY_END] = np.cumsum(table[_KEY_END])
        # Wide numbers come first, so that all are aligned.
        columns = sorted(table.items(), key=lambda column: -column[1].itemsize)
        self._write_side(bytes(-self.side_bytes % 8))
        end = self.side_bytes
        header: dict[str, Any] = {_SIDE: _describe(np.uint8, (end,), 0)}
        checksum = 0
        for name, column in columns:
            header[name] = _describe(column.dtype, column.shape, end)
            content = column.ravel().view(np.uint8).data
            checksum = zlib.crc32(content, checksum)
            end += self._file.write(content)
        text = json.dumps(header).encode().ljust(HEADER_BYTES - 8)
        start = len(text).to_bytes(8, "little") + text
        self._file.seek(0)
        self._file.write(start)
        return zlib.crc32(start, checksum)

    def _write_side(self, content: bytes) -> None:
        self.side_bytes += self._file.write(content)
        self.side_crc32 = zlib.crc32(content, self.side_crc32)


def _describe(dtype: Any, shape: Sequence[int], start: int) -> dict[str, Any]:
    dtype = np.dtype(dtype)
    end = start + dtype.itemsize * math.prod(shape)
    return {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}


class IndexFile:
    """The table of an index file, and where its side indexes are.

    A column is read when it is first used.
    """

    def __init__(self, file: Path, types: Mapping[str, Any], checksum: int | None = None) -> None:
        """`types` are those of the columns besides keys and side indexes.

        Raises OSError, and DataError if the file is damaged or its `table_crc32` is not `checksum`.
        """
        self.file = file
        own = {SIDE_OFFSET: np.int64, SIDE_LENGTH: np.int32, _KEY_END: np.int64, _KEY: np.uint8}
        self._columns: dict[str, NDArray[Any]] = {}
        try:
            start = read_bytes(file, 0, HEADER_BYTES).numpy()
            header = json.loads(start[8:].tobytes())
            self.side_bytes = int(header[_SIDE]["data_offsets"][1])
            table_start, size = HEADER_BYTES + self.side_bytes, file.stat().st_size
            if not HEADER_BYTES <= table_start <= size:
                raise ValueError("it ends too early")
            if checksum is not None:
                found = crc32(file, 0, HEADER_BYTES, crc32(file, table_start, size))
                if found != checksum:
                    raise ValueError("its checksum differs")
            self._places = {
                name: _Place.of(header[name], number, table_start, size)
                for name, number in {**types, **own}.items()
            }
            self._check()
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            remedy = "copy it again or make it again"
            raise DataError(f"{file} is damaged ({error}): {remedy}") from error

    def _check(self) -> None:
        offsets, lengths = self[SIDE_OFFSET], self[SIDE_LENGTH]
        if len(offsets) != len(self) or len(lengths) != len(self):
            raise ValueError("its columns differ in length")
        end = HEADER_BYTES + self.side_bytes
        outside = (offsets < HEADER_BYTES) | (offsets > end) | (lengths < 0)
        if (outside | (lengths > end - offsets)).any():
            raise ValueError("it has impossible positions")

    def __len__(self) -> int:
        return self._places[_KEY_END].shape[0]

    def __getitem__(self, column: str) -> NDArray[Any]:
        """Raises OSError and DataError if it cannot be read."""
        if column not in self._columns:
            place = self._places[column]
            data = read_bytes(self.file, place.start, place.end - place.start).numpy()
            self._columns[column] = data.view(place.dtype).reshape(place.shape)
        return self._columns[column]

    def key(self, row: int) -> bytes:
        ends = self[_KEY_END]
        return self[_KEY][(ends[row - 1] if row else 0) : ends[row]].tobytes()

    def keys(self) -> list[bytes]:
        text, start, keys = self[_KEY].tobytes(), 0, []
        for end in self[_KEY_END].tolist():
            keys.append(text[start:end])
            start = end
        return keys

    def side_crc32(self) -> int:
        """CRC-32 of the side indexes. Raises OSError and DataError."""
        return crc32(self.file, HEADER_BYTES, HEADER_BYTES + self.side_bytes)


class _Place(NamedTuple):
    """Where a column is in the file."""

    start: int
    end: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, described: Any, number: Any, table_start: int, size: int) -> _Place:
        """From the header; raises ValueError, KeyError or TypeError."""
        start, end = (HEADER_BYTES + int(place) for place in described["data_offsets"])
        shape = tuple(int(length) for length in described["shape"])
        found = cls(start, end, np.dtype(number), shape)
        if _TYPES[described["dtype"]] != number or not table_start <= start <= end <= size:
            raise ValueError("it has other columns")
        if not shape or min(shape) < 0 or found.dtype.itemsize * math.prod(shape) != end - start:
            raise ValueError("it has other columns")
        return found


class SideIndexes:
    """The side indexes of a source's images, in one index file or several."""

    def __init__(
        self,
        files: Sequence[Path],
        file_of: NDArray[np.integer],
        offsets: Ints,
        lengths: NDArray[Any],
    ) -> None:
        """The file of each image's index, and its offset and length there; length 0 for an image
        without."""
        self._files, self._file_of = files, file_of
        self._offsets, self.lengths = offsets, lengths

    def of(self, indices: Ints) -> list[Tensor]:
        """Returns the index of each of these images, uint8 (bytes,); empty for none."""
        none = torch.empty(0, dtype=torch.uint8)
        columns = (self._file_of, self._offsets, self.lengths)
        places = zip(*(column[indices].tolist() for column in columns), strict=True)
        return [
            self._maps[file][at : at + length] if length else none for file, at, length in places
        ]

    def read(self, rows: Ints) -> tuple[int, Tensor]:
        """Returns the part of a file that holds the indexes of `rows`, all in one, and its offset.

        Raises OSError and DataError.
        """
        start = int(self._offsets[rows].min())
        end = int((self._offsets[rows] + self.lengths[rows]).max())
        return start, read_bytes(self._files[int(self._file_of[rows[0]])], start, end - start)

    def cut(self, index: int, start: int, part: Tensor) -> Tensor:
        """Returns an image's index from what `read` returned."""
        first = int(self._offsets[index]) - start
        return part[first : first + int(self.lengths[index])]

    @cached_property
    def _maps(self) -> list[Tensor]:
        return [map_file(file) for file in self._files]

    def __getstate__(self) -> dict[str, Any]:
        """Without the mapped bytes: the receiving process maps the files again."""
        return {name: value for name, value in vars(self).items() if name != "_maps"}


def find_side_indexes(file: Path, paths: Sequence[str]) -> SideIndexes | None:
    """Returns the side indexes that the file has for these paths; None if it has none, or is
    damaged.

    A warning says so, or counts the images without one.
    """
    try:
        index = IndexFile(file, {})
        rows = {key: row for row, key in enumerate(index.keys())}
    except (OSError, DataError, ReadError) as error:
        log.warning("%s; %d images %s", error, len(paths), _CONSEQUENCE)
        return None
    none = len(index)
    places = np.array([rows.get(os.fsencode(path), none) for path in paths], np.int64)
    if new := int((places == none).sum()):
        log.warning("%s lacks %d of %d images: they %s", file, new, len(paths), _CONSEQUENCE)
    offsets, lengths = (np.append(index[name], 0)[places] for name in (SIDE_OFFSET, SIDE_LENGTH))
    file_of = np.zeros(len(paths), np.int8)
    return SideIndexes([file], file_of, offsets, lengths) if lengths.any() else None
