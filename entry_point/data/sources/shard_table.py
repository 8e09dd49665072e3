"""The table of a packed split: a row for each image, as columns of a safetensors file."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from entry_point.data.errors import DataError
from entry_point.data.retries import with_retries
from entry_point.data.sources.file_bytes import crc32, opened
from entry_point.job.whole_file import whole_file

T = TypeVar("T")

KEY, KEY_END = "key", "key_end"
"""The columns with the concatenated names, as UTF-8, and the end of each."""
_TYPES_OF_KEYS: dict[str, Any] = {KEY: np.uint8, KEY_END: np.int64}
_NAMES: dict[Any, str] = {
    **{np.int64: "I64", np.int32: "I32", np.int8: "I8"},
    **{np.uint32: "U32", np.uint8: "U8", np.float32: "F32"},
}
"""safetensors' names of numeric types."""


def write_table(file: Path, columns: Mapping[str, NDArray[Any]], keys: list[bytes]) -> int:
    """Write columns and names; returns the CRC-32 of the file. Raises OSError."""
    text = np.frombuffer(b"".join(keys), np.uint8)
    ends = np.cumsum([*map(len, keys)], dtype=np.int64)
    content = save({**columns, KEY: text, KEY_END: ends})
    with whole_file(file) as opened_file:
        opened_file.write(content)
    return zlib.crc32(content)


class Table:
    """A table; each column is read when it is first used."""

    def __init__(self, file: Path, types: Mapping[str, Any]) -> None:
        """`types` are the types of all columns but the names.

        Raises OSError, and DataError if the file is missing, or has other columns.
        """
        self.file, self._columns = file, dict[str, NDArray[Any]]()
        if not file.is_file():
            raise DataError(f"{file} is missing: copy it again or pack the dataset again")
        shapes = self._read(lambda tensors: _shapes(tensors, {**types, **_TYPES_OF_KEYS}))
        self.shapes: dict[str, tuple[int, ...]] = shapes

    def __len__(self) -> int:
        return self.shapes[KEY_END][0]

    def __getitem__(self, column: str) -> NDArray[Any]:
        """Returns a column. Raises OSError and DataError if it cannot be read."""
        if column not in self._columns:
            found: NDArray[Any] = self._read(lambda tensors: tensors.get_tensor(column))
            self._columns[column] = found
        return self._columns[column]

    def name(self, row: int) -> str:
        ends = self[KEY_END]
        key = self[KEY][(ends[row - 1] if row else 0) : ends[row]].tobytes()
        return key.decode("utf-8", "backslashreplace")

    def crc32(self, skip: tuple[int, int] = (0, 0)) -> int:
        """Returns the CRC-32 of the file. With `skip`, it is that of the bytes from `skip[1]` on,
        then those before `skip[0]`. Raises OSError and DataError."""
        before, behind = skip
        return crc32(self.file, 0, before, crc32(self.file, behind, self.file.stat().st_size))

    def damaged(self, reason: object) -> DataError:
        return DataError(f"{self.file} is damaged ({reason}): copy it again or pack it again")

    def _read(self, use: Callable[[Any], T]) -> T:
        """Returns the result of `use` for the open file."""
        try:
            return with_retries(self._read_once, use, name=lambda _: self.file)
        except (SafetensorError, ValueError) as error:
            raise self.damaged(error) from error

    def _read_once(self, use: Callable[[Any], T]) -> T:
        with opened(self.file) as descriptor:
            # By descriptor, as the package's own errors in opening have no number.
            with safe_open(f"/dev/fd/{descriptor}", framework="numpy") as tensors:
                return use(tensors)


def _shapes(tensors: Any, types: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all columns. Raises SafetensorError, and ValueError for other types."""
    shapes = dict[str, tuple[int, ...]]()
    for name, number in types.items():
        column = tensors.get_slice(name)
        shapes[name] = tuple(column.get_shape())
        if column.get_dtype() != _NAMES[number] or not shapes[name]:
            raise ValueError(f"{name}: {column.get_dtype()} {[*shapes[name]]}")
    return shapes
