"""JSON lines, and SageMaker's augmented manifest, which describes its labels in further keys."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec import Struct, defstruct, field
from msgspec.json import Decoder

from entry_point.data.errors import DataError
from entry_point.data.sources.table.bad_row import quoted
from entry_point.data.sources.table.columns import METADATA, Columns

_BLOCK = _LONGEST_LINE = 1 << 20


class JsonLinesFile:
    """One JSON object per line.

    msgspec builds only the values that are needed, of many lines in one call. Python's json reads
    the blocks that have blank lines or that msgspec refuses: it accepts more (NaN, half a surrogate
    pair), and its errors are the ones to show.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        first = next(filter(None, map(_lines, self._blocks())), None)
        if first is None:
            raise DataError(f"{file} is empty: it must hold a JSON object per line")
        self.names = list(self._object(first[0], 1))

    def chunks(self, columns: Sequence[str]) -> Iterator[Columns]:
        keys = {name: name + METADATA for name in columns}
        described = [name for name, key in keys.items() if key in self.names and key not in keys]
        decoder, done = _decoder(columns, described), 0
        for block in self._blocks():
            try:
                found = _decoded(block, decoder, columns, described)
            except (ValueError, RecursionError):
                found = self._read(_lines(block), columns, described, done)
            yield found
            done += len(found[0])

    def _blocks(self) -> Iterator[bytes]:
        """The file in pieces that end where a line ends."""
        with self._file.open("rb") as file:
            file.seek(len(BOM_UTF8) if file.read(len(BOM_UTF8)) == BOM_UTF8 else 0)
            while block := file.read(_BLOCK):
                yield block + file.readline()

    def _read(
        self, lines: list[bytes], columns: Sequence[str], described: Sequence[str], done: int
    ) -> Columns:
        """The columns of any lines, which follow `done` others. Raises DataError."""
        rows = [self._object(line, row) for row, line in enumerate(lines, done + 1)]
        for row, found in enumerate(rows, done + 1):
            for name in columns:
                if name not in found:
                    raise DataError(f"{self._file}, row {row}: has no {quoted(name)}")
        return [
            [_named(row[name], _metadata(row, name)) for row in rows]
            if name in described
            else [row[name] for row in rows]
            for name in columns
        ]

    def _object(self, line: bytes, row: int) -> dict[str, Any]:
        where = f"{self._file}, row {row}"
        if len(line) > _LONGEST_LINE:
            raise DataError(f"{where}: is longer than 1 MB")
        try:
            found = json.loads(line)
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: is not UTF-8: save it as UTF-8") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: is not JSON ({error}): write one object per line") from error
        if not isinstance(found, dict):
            raise DataError(f"{where}: is not a JSON object: write one object per line")
        return found


class _Metadata(Struct, rename="kebab"):
    """How SageMaker names the classes of a label."""

    class_name: Any = None
    class_map: Any = None


def _metadata(row: dict[str, Any], name: str) -> _Metadata | None:
    found = row.get(name + METADATA)
    if not isinstance(found, dict):
        return None
    return _Metadata(found.get("class-name"), found.get("class-map"))


def _named(value: Any, metadata: _Metadata | None) -> Any:
    """The names of the classes instead of their numbers."""
    if metadata is None:
        return value
    if (name := metadata.class_name) is not None:
        return name
    if not isinstance(names := metadata.class_map, dict):
        return value
    return [names.get(str(n), n) for n in (value if isinstance(value, list) else [value])]


def _decoder(columns: Sequence[str], described: Sequence[str]) -> Decoder[Any]:
    """Reads a line's columns as fields that are called by the column's number."""
    values = [(f"value{i}", Any, field(name=name)) for i, name in enumerate(columns)]
    metadata = []
    for name in described:
        optional = field(name=name + METADATA, default=None)
        metadata.append((f"metadata{columns.index(name)}", _Metadata | None, optional))
    return Decoder(defstruct("Row", [*values, *metadata]))


def _lines(block: bytes) -> list[bytes]:
    """The lines that are not blank."""
    return list(filter(bytes.strip, block.split(b"\n")))


def _decoded(
    block: bytes, decoder: Decoder[Any], columns: Sequence[str], described: Sequence[str]
) -> Columns:
    """The columns of most blocks. Raises ValueError and RecursionError for any others."""
    if not block.isascii():
        block.decode()  # msgspec does not check the text that it skips
    rows = decoder.decode_lines(block)
    # msgspec also takes blank lines, and several objects in a line.
    if len(rows) != block.count(b"\n") + (not block.endswith(b"\n")):
        raise ValueError
    # Only the last line can end after _BLOCK bytes.
    if len(block) - block.rfind(b"\n", 0, -1) > _LONGEST_LINE:
        raise ValueError
    found: list[Sequence[Any]] = []
    for number, name in enumerate(columns):
        values = list(map(attrgetter(f"value{number}"), rows))
        if name in described:
            metadata = map(attrgetter(f"metadata{number}"), rows)
            values = list(map(_named, values, metadata))
        found.append(values)
    return found
