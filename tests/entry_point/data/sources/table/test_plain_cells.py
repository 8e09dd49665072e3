"""Blocks that are split at their delimiters hold what Python's csv reads."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from entry_point.data.errors import DataError
from entry_point.data.sources.table import plain_cells, table_files
from entry_point.data.sources.table.table_files import DelimitedFile

CELLS = st.text('ab,;\t"\r\n é\0', max_size=4)
PLAIN = st.text("ab é", max_size=4)


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """Mostly good lines, in any of the line ends, and now and then anything."""
    width, end = draw(st.integers(1, 3)), draw(st.sampled_from(["\n", "\r\n"]))
    row = st.lists(PLAIN, min_size=width, max_size=width).map(",".join)
    odd = st.lists(CELLS, max_size=4).map(",".join)
    lines = draw(st.lists(st.one_of(row, row, row, row, odd), max_size=9))
    text = end.join([",".join("xyz"[:width]), *lines]) + draw(st.sampled_from(["", end]))
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + text.encode()


def rows(file: Path) -> tuple[list[list[str]], str]:
    """All rows before an error, and the error."""
    found: list[list[str]] = []
    try:
        table = DelimitedFile(file)
        for columns in table.chunks(table.names):
            found += map(list, zip(*columns, strict=True))
    except DataError as error:
        return found, str(error)
    return found, ""


@given(content=tables(), block=st.integers(1, 30))
@settings(
    deadline=None, max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_table_gives_the_rows_and_the_error_that_csv_gives(
    content: bytes, block: int, tmp_path: Path
) -> None:
    file = tmp_path / "labels.csv"
    file.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_cells, "_BLOCK", block)
        found, error = rows(file)
        patch.setattr(table_files, "plain_blocks", lambda *_: ())
        expected, expected_error = rows(file)
    assert error == expected_error
    # Python's csv gives no row of a chunk with an error.
    assert found[: len(expected)] == expected
    assert error or found == expected


def test_a_long_cell_is_refused_as_csv_refuses_it(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text("path,label\na.jpg,x\nb.jpg," + "y" * 200_000 + "\n")
    assert "line 3: field larger than field limit" in rows(file)[1]


def test_a_plain_table_is_not_parsed(tmp_path: Path) -> None:
    file = tmp_path / "labels.tsv"
    lines = [f"{number}.jpg\tclass {number % 7}" for number in range(100_000)]
    file.write_text("\r\n".join(["path\tlabel", *lines, ""]))
    table = DelimitedFile(file)
    blocks = list(plain_cells.plain_blocks(file, "\t", 2))
    assert len(blocks) > 1 and blocks[-1][1] == file.stat().st_size
    columns = [cell for chunk in table.chunks(["label"]) for cell in chunk[0]]
    assert columns == [f"class {number % 7}" for number in range(100_000)]
