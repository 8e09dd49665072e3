"""The cells of CSV and TSV files that need no parser: no quotes, and equally long rows."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_BLOCK = 1 << 18
_LINE_FEED = 10


def plain_blocks(file: Path, delimiter: str, width: int) -> Iterator[tuple[list[str], int]]:
    """The cells of whole lines, row by row, and the offset where they end.

    Stops before the first block that needs a parser. Tables of one column always need it: a blank
    line would look like a cell.
    """
    with file.open("rb") as lines:
        while width > 1 and (block := lines.read(_BLOCK)):
            cells = _plain_cells(block + lines.readline(), delimiter, width)
            if cells is None:
                return
            yield cells, lines.tell()


def _plain_cells(block: bytes, delimiter: str, width: int) -> list[str] | None:
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    if b'"' in block or b"\r" in block:
        return None
    block = block if block.endswith(b"\n") else block + b"\n"
    text = np.frombuffer(block, np.uint8)
    is_line_end = text == _LINE_FEED
    ends = np.flatnonzero(is_line_end | (text == ord(delimiter)))
    last_in_line = is_line_end[ends]
    of_a_row = last_in_line[width - 1 :: width]
    if not of_a_row.all() or len(ends) != width * np.count_nonzero(last_in_line):
        return None
    if np.diff(ends, prepend=-1).max() > csv.field_size_limit():
        return None
    try:
        return block[:-1].decode().replace("\n", delimiter).split(delimiter)
    except UnicodeDecodeError:
        return None
